"""Groups of processes: each tries some penalties of a ridge regression on handwritten digits.

The processes of a group divide the scans among themselves. Sums over the scans are added up within
the group, and groups do not wait for each other. At the end all processes meet again.

python examples/sub_groups.py                                  one process, one group
lockstep run --nproc-per-node 4 examples/sub_groups.py         two groups of two
"""

import argparse

import torch
from sklearn.datasets import load_digits

import lockstep

PENALTIES = [1.0, 1e2, 1e3, 1e4, 1e5, 1e6]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=2)
    args = parser.parse_args()

    team = lockstep.join(shards=8, device="cpu")
    num_groups = min(args.groups, team.world_size)
    # Every process must call new_group for every group. It returns None for the other groups.
    shares = [range(number, team.world_size, num_groups) for number in range(num_groups)]
    groups = [team.new_group(ranks) for ranks in shares]
    number = team.rank % num_groups
    group = groups[number]
    count = f"{team.world_size} process{'es' if team.world_size > 1 else ''}"
    team.print(f"{len(PENALTIES)} penalties on {count}, groups {[list(ranks) for ranks in shares]}")

    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    wanted = torch.nn.functional.one_hot(labels, 10).double()
    mine = slice(group.rank, 1437, group.size)  # this process's scans: every group.size-th
    squares = group.all_reduce(images[mine].T @ images[mine])
    products = group.all_reduce(images[mine].T @ wanted[mine])

    right = torch.zeros(len(PENALTIES))
    weights = {}
    for index in range(number, len(PENALTIES), num_groups):
        weights[index] = torch.linalg.solve(squares + PENALTIES[index] * torch.eye(64), products)
        tested = slice(1437 + group.rank, None, group.size)
        found = (images[tested] @ weights[index]).argmax(1) == labels[tested]
        num_right = group.all_reduce(found.sum())
        if group.rank == 0:
            right[index] = num_right
    # Each number comes from the first process of one group; all others contribute 0.
    right = team.all_reduce(right)

    best = int(right.argmax())
    source = best % num_groups  # the first process of that group
    if team.rank == source != 0:
        team.send(weights[best], dst=0)
    if team.is_main:
        found = weights[best] if source == 0 else team.recv(torch.empty(64, 10, dtype=torch.double), src=source)
        for penalty, number_right in zip(PENALTIES, right.tolist(), strict=True):
            print(f"penalty {penalty:g}: {number_right:.0f} of {len(labels) - 1437} right")
        print(f"best: {PENALTIES[best]:g}, with weights of length {found.norm():.4f}")


if __name__ == "__main__":
    main()
