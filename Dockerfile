# docker build -t lockstep .                                 on CPUs
# docker build -t lockstep --build-arg CUDA=cu130 .          on NVIDIA GPUs: docker run --gpus all --ipc=host ... (not run yet)
# docker run --rm -it -v "$PWD:/work" lockstep lockstep run --nproc-per-node 2 train.py
FROM python:3.12-slim-bookworm
# A variant of PyTorch's own index: cpu, cu126, cu128, cu130, ...
ARG CUDA=cpu
ARG TORCH=2.13.0

RUN pip install --no-cache-dir "torch==${TORCH}" --index-url "https://download.pytorch.org/whl/${CUDA}"
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN pip install --no-cache-dir . && useradd --create-home --uid 1000 trainer

# Loader workers pass batches through /dev/shm, of which a container has 64 MB by default: --shm-size=2g, or --ipc=host.
USER 1000
WORKDIR /work
CMD ["lockstep", "--help"]
