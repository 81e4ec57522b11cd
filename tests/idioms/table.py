"""What is promised for each script of the corpus: one row a script. ``pitfalls.py`` makes ``docs/pitfalls.md`` of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Equal:
    """Weights, buffers, optimizer state and returned numbers are equal to the bit on every rank, however many there are."""

    plain: bool = False
    """Also equal to the script's ``plain()``, which does without lockstep, on one process with one shard."""


@dataclass(frozen=True)
class Refused:
    """It ends in an error of lockstep's with these words."""

    words: str
    alone: bool = True
    """Whether also by a process that is alone. (Else it runs there: only other processes can tell.)"""


@dataclass(frozen=True)
class Documented:
    """It runs, and gives another answer on other numbers of processes, which is tested too."""

    why: str
    """For whoever reads the page."""


@dataclass(frozen=True)
class Row:
    """A script of ``scripts/``."""

    name: str
    what: str
    promise: Equal | Refused | Documented
    heavy: bool = False
    """It imports what takes seconds in every process, so it is tested on fewer of them."""


EQUAL = Equal()
PLAIN = Equal(plain=True)

# By group, in the order in which the page shows them.
TABLE = {
    "optimizers": [
        Row("sgd", "plain SGD", PLAIN),
        Row("sgd_momentum", "SGD with momentum", PLAIN),
        Row("sgd_nesterov", "SGD with Nesterov momentum and weight decay", PLAIN),
        Row("sgd_maximize", "gradient ascent (maximize=True)", PLAIN),
        Row("sgd_foreach", "SGD, all tensors in one call (foreach=True)", PLAIN),
        Row("sgd_fused", "SGD in one kernel (fused=True)", PLAIN),
        Row("adam", "Adam", PLAIN),
        Row("adam_amsgrad", "Adam with AMSGrad and weight decay", PLAIN),
        Row("adam_fused", "Adam in one kernel (fused=True)", PLAIN),
        Row("adamw", "AdamW", PLAIN),
        Row("adamax", "Adamax", PLAIN),
        Row("nadam", "NAdam", PLAIN),
        Row("radam", "RAdam", PLAIN),
        Row("rmsprop", "RMSprop, centred, with momentum", PLAIN),
        Row("rprop", "Rprop", PLAIN),
        Row("adagrad", "Adagrad with a decaying rate", PLAIN),
        Row("adadelta", "Adadelta", PLAIN),
        Row("asgd", "averaged SGD (ASGD)", PLAIN),
        Row("adafactor", "Adafactor", PLAIN),
        Row("muon", "Muon for the matrices, AdamW for the rest (a list of optimizers)", EQUAL),
        Row("lbfgs", "L-BFGS: the closure goes over the shards as often as the optimizer asks", PLAIN),
        Row("lbfgs_line_search", "L-BFGS with the strong Wolfe line search", PLAIN),
        Row("adam_closure", "an ordinary optimizer that is given a closure", EQUAL),
        Row("sparse_adam", "SparseAdam on an embedding with sparse gradients", Refused("has a sparse gradient")),
        Row("parameter_groups", "groups of parameters with rates of their own, no weight decay on biases", EQUAL),
        Row("two_optimizers", "two optimizers for two parts of a model, one acting every second step only", EQUAL),
        Row("own_optimizer", "an optimizer class of the script's own (Lion)", EQUAL),
        Row("update_by_hand", "no optimizer at all: the weights are updated by hand", PLAIN),
        Row("update_through_data", "the weights are written through `p.data`, with momentum kept in a dict", EQUAL),
        Row("sign_sgd", "signSGD: the gradient is replaced by its sign before the step", EQUAL),
        Row("optimizer_exchanged", "another optimizer from the third step on, made in mid-run and not prepared", EQUAL),
        Row(
            "optimizer_not_prepared",
            "an optimizer that is not prepared (it is said that no checkpoint has its state)",
            EQUAL,
        ),
        Row("optimizer_state_reset", "the optimizer's state is thrown away every second step", EQUAL),
        Row("add_param_group", "a frozen layer is thawed in mid-run and added to the optimizer", EQUAL),
        Row("optimizer_hooks", "hooks of the optimizer that run before and after each step", EQUAL),
        Row("zero_at_the_start", "`zero_grad()` at the beginning of a step", PLAIN),
        Row("zero_to_zeros", "`zero_grad(set_to_none=False)`: gradients are filled with zeros", EQUAL),
        Row("never_cleared", "gradients are never cleared, so that they add up over all steps", PLAIN),
        Row(
            "optimizer_in_backward",
            "an optimizer step inside the backward pass (post-accumulate hooks)",
            Refused("SGD.step() inside batch.shards"),
        ),
        Row("lookahead", "Lookahead: slow weights follow the fast ones every second step", PLAIN),
        Row("sam", "SAM: a second pass over the shards at the weights moved uphill", PLAIN),
        Row("sgld", "Langevin dynamics: noise is added to the weights after every step", EQUAL),
        Row("svrg", "SVRG: a pass that only collects the full gradient, then steps of two phases each", EQUAL),
        Row("evolution_strategy", "an evolution strategy: no gradients, only losses at perturbed weights", EQUAL),
        Row("reptile", "Reptile: several inner steps on one batch, then a move towards where they led", EQUAL),
    ],
    "gradients": [
        Row("clip_norm", "clipping by norm with `torch.nn.utils`", PLAIN),
        Row("clip_norm_by_team", "clipping by norm with `team.clip_grad_norm_`", EQUAL),
        Row("clip_value", "clipping by value", PLAIN),
        Row("adaptive_clipping", "adaptive gradient clipping (AGC): by the norm of each row of the weights", EQUAL),
        Row("clip_by_history", "AutoClip: the limit is a quantile of all norms so far", EQUAL),
        Row("parameter_hooks", "hooks on the parameters clamp the gradients in the backward pass", PLAIN),
        Row("masked_by_hooks", "hooks keep a part of the weights at zero (a fixed sparse network)", EQUAL),
        Row("gradient_noise", "noise is added to the gradient, less in each step", EQUAL),
        Row("gradient_centralisation", "each row of a gradient is moved to mean zero", EQUAL),
        Row("top_k_gradient", "only the largest parts of the gradient are used, the rest is kept for the next step", EQUAL),
        Row(
            "gradients_replaced",
            "gradients are taken out, kept in a list, and put back as their mean over two steps",
            EQUAL,
        ),
        Row("accumulated_by_hand", "the optimizer acts every second batch only, on the sum", PLAIN),
        Row(
            "accumulated_to_the_end",
            "three batches are accumulated by hand, the rest of the pass too, with a loss for each",
            EQUAL,
        ),
        Row("accumulate_setting", "`accumulate=3`: three global batches make one step, the last step has fewer", EQUAL),
        Row("loss_scaled_by_hand", "the loss is multiplied by 1024 and the gradient divided by it", EQUAL),
        Row("own_grad_scaler", "the script's own GradScaler, with clipping in between", EQUAL),
        Row("gradient_norm_logged", "the norm of every gradient is logged by hand", EQUAL),
        Row("step_skipped_for_large_gradient", "a step is skipped where the gradient is too large or not finite", EQUAL),
        Row("gradient_penalty", "a penalty on the gradient by the inputs (torch.autograd.grad, create_graph)", EQUAL),
        Row(
            "second_order_weights",
            "a penalty on the gradient by the weights: a second backward pass through the first",
            EQUAL,
        ),
        Row("create_graph_in_backward", "`team.backward(loss, create_graph=True)`", Refused("backward(create_graph=True)")),
        Row("maml", "MAML: an inner step by torch.autograd.grad and functional_call, in each shard", EQUAL),
        Row("adversarial_examples", "FGSM: each shard is trained on samples moved against the model", EQUAL),
        Row("dp_sgd", "differential privacy: gradients of single samples are clipped, summed, and noise is added", EQUAL),
        Row("gradient_surgery", "PCGrad: two tasks, a phase for each, conflicting gradients are projected", EQUAL),
        Row("several_losses", "several losses, added up and logged one by one", EQUAL),
        Row("several_backward_calls", "two backward calls in each shard, for two losses of one forward pass", PLAIN),
        Row("summed_loss", 'a loss that is a sum over the samples (`reduction="sum"`)', PLAIN),
        Row(
            "summed_loss_by_global_size",
            "a summed loss divided by `batch.num_samples`, so that the learning rate is that of a mean",
            EQUAL,
        ),
        Row(
            "summed_loss_not_said",
            'a loss that is a sum over the samples, without `reduction="sum"`',
            Refused("is a sum over its"),
        ),
        Row("token_weights", "a mean over tokens, weighted by their number", EQUAL),
        Row("shards_of_no_weight", "shards in which no target is valid have weight 0 (their mean is NaN)", EQUAL),
        Row("deep_supervision", "losses at several depths of a model", EQUAL),
        Row("uncertainty_weighting", "weights of five losses that are learnt themselves", EQUAL),
        Row(
            "hutchinson_curvature",
            "an estimate of the curvature by random vectors, used as step sizes (AdaHessian)",
            EQUAL,
        ),
        Row(
            "fisher_information",
            "elastic weight consolidation: squared gradients of a first task hold the weights in a second",
            EQUAL,
        ),
        Row(
            "sum_by_hand",
            "the shards' losses are added up in an ordinary variable",
            Documented(
                "An ordinary variable that adds up the shards' losses holds this process's shards only: use "
                '`batch.add(loss=loss)` and read `batch["loss"]` behind the pass.',
            ),
        ),
        Row(
            "clip_inside",
            "torch's `clip_grad_norm_` is called inside `batch.shards`",
            Refused("a gradient was used inside batch.shards"),
        ),
        Row("own_generator_outside", "noise from a generator of the script's own, drawn behind the pass", EQUAL),
        Row("functional_call_of_the_prepared_model", "`torch.func.functional_call` of the prepared model itself", EQUAL),
    ],
    "averages of weights": [
        Row("ema_by_hand", "a moving average of the weights, kept by hand in a copy of the model", PLAIN),
        Row("ema_pulled_back", "a moving average in a dict of tensors, towards which the weights are pulled back", EQUAL),
        Row("averaged_model", "AveragedModel, prepared", PLAIN),
        Row(
            "averaged_model_ema",
            "AveragedModel with an exponential average and buffers, not prepared, updated every second step",
            EQUAL,
        ),
        Row("swa", "stochastic weight averaging: SWALR from the second epoch on, update_bn at the end", EQUAL),
        Row("mean_teacher", "mean teacher: a moving average of the model is asked inside the shards", EQUAL),
        Row("ema_swapped_for_evaluation", "averaged weights are swapped in for an evaluation, and out again", EQUAL),
        Row(
            "best_weights_kept",
            "a copy of the weights with the lowest training loss is kept, and loaded at the end",
            EQUAL,
        ),
        Row("weight_soup", "the weights at the ends of all epochs are averaged into one model", EQUAL),
        Row(
            "ema_inside",
            "`AveragedModel.update_parameters` inside `batch.shards`",
            Refused("AveragedModel.update_parameters() inside batch.shards"),
        ),
        Row(
            "ema_copied_after_prepare",
            "a copy of the prepared model (`copy.deepcopy`) that follows it, and is evaluated",
            EQUAL,
        ),
        Row("averaged_model_after_prepare", "AveragedModel of the prepared model", EQUAL),
    ],
    "models": [
        Row("dropout", "a model with dropout", EQUAL),
        Row("batch_norm", "a small convolutional network with BatchNorm", EQUAL),
        Row("batch_norm_frozen", "BatchNorm that is put into evaluation mode after the first epoch", EQUAL),
        Row("other_normalisations", "GroupNorm, LayerNorm and InstanceNorm with running statistics", EQUAL),
        Row(
            "sync_batch_norm",
            "a model converted to SyncBatchNorm",
            Refused("is SyncBatchNorm, which takes its statistics over the processes"),
        ),
        Row("actnorm", "ActNorm: scale and shift are initialised from the first batch, in a phase of their own", EQUAL),
        Row("weight_norm", "weight norm (torch.nn.utils.parametrizations)", EQUAL),
        Row("spectral_norm", "spectral norm: its power iteration changes buffers in every forward pass", EQUAL),
        Row("orthogonal_weights", "a layer that is kept orthogonal by a parametrization", EQUAL),
        Row("tied_weights", "an embedding and an output layer that share their weights", EQUAL),
        Row("layer_drop", "LayerDrop: each shard leaves out layers at random", EQUAL),
        Row("stochastic_depth", "stochastic depth: single samples leave out layers at random", EQUAL),
        Row("mixture_of_experts", "a mixture of experts, of which some get no tokens in a shard or in a whole step", EQUAL),
        Row("unused_parameters", "a layer that is never used, and optimizer state only for those that are", EQUAL),
        Row("checkpointing", "activation checkpointing (use_reentrant=False) of a part with dropout", EQUAL),
        Row("checkpointing_reentrant", "activation checkpointing of the older kind (use_reentrant=True)", EQUAL),
        Row("compiled", "`torch.compile` (aot_eager), before prepare", EQUAL, heavy=True),
        Row("frozen_backbone", "a frozen part, only the head learns", EQUAL),
        Row("frozen_in_mid_run", "a layer is frozen from the third step on", PLAIN),
        Row("frozen_at_random", "in each step some parameters are frozen, drawn at random", EQUAL),
        Row("gradual_thawing", "layers are thawed one after another, from the head down", EQUAL),
        Row("lora", "LoRA by hand: frozen weights with two small matrices beside them", EQUAL),
        Row("bitfit", "only the biases learn", EQUAL),
        Row("prompt_tuning", "a learnt prompt in front of a frozen model that is not prepared", EQUAL),
        Row("recurrent", "an LSTM over sequences of several lengths, packed", EQUAL),
        Row(
            "hidden_state_carried",
            "a recurrent network whose hidden state goes from batch to batch (`team.per_shard`)",
            EQUAL,
        ),
        Row(
            "hidden_state_in_a_variable",
            "a hidden state goes from batch to batch in an ordinary variable",
            Documented(
                "What goes from batch to batch in an ordinary variable comes from the shard that this process ran "
                "last, which is another one at another number of processes: keep it in `team.per_shard(name, start)`.",
            ),
        ),
        Row(
            "truncated_backpropagation",
            "truncated backpropagation through time: a step for every part of the sequences of a batch",
            EQUAL,
        ),
        Row("attention", "a transformer layer with dropout and a causal mask", EQUAL),
        Row(
            "embedding_max_norm",
            "an embedding that renormalises its rows in the forward pass (`max_norm`)",
            Refused("was changed inside batch.shards"),
        ),
        Row("embedding_renormalised", "the rows of an embedding are renormalised by hand after each step", EQUAL),
        Row("neurons_reinitialised", "dead neurons are drawn anew, at random", EQUAL),
        Row("magnitude_pruning", "the smallest weights are set to zero after every step, more and more of them", EQUAL),
        Row("pruned_by_torch", "torch.nn.utils.prune, before prepare, with its mask as a buffer", EQUAL),
        Row("lottery_ticket", "lottery ticket: weights go back to the start behind a mask after the first epoch", EQUAL),
        Row("growing_model", "a layer is added to the model in mid-run", Refused("belongs to no prepared model")),
        Row("hooks_for_activations", "a forward hook catches activations, which are penalised", EQUAL),
        Row("own_autograd_function", "gradient reversal and a straight-through estimator as autograd functions", EQUAL),
        Row("fake_quantisation", "quantisation-aware training with running minima and maxima in buffers", EQUAL),
        Row(
            "input_statistics",
            "a model that normalises its inputs by running statistics and counts samples (integer buffer)",
            EQUAL,
        ),
        Row("vq_codebook", "a VQ-VAE whose codebook is a buffer that follows the encodings", EQUAL),
        Row(
            "growing_buffer",
            "a buffer that becomes longer with every forward pass",
            Refused("the buffer 'seen' of Growing became"),
        ),
        Row("double_precision", "a model in float64", EQUAL),
        Row("own_autocast", "the script's own torch.autocast in bfloat16", EQUAL),
        Row(
            "mixed_precision",
            '`precision="16-mixed"`: the loss is scaled, the gradients read behind the pass are not',
            EQUAL,
        ),
        Row("lazy_layers", "lazy layers that a sample has been run through before prepare", EQUAL),
        Row("written_inside", "weights are clamped inside `batch.shards`", Refused("was changed inside batch.shards")),
        Row(
            "written_inside_through_data",
            "weights shrink a little with every shard, through `p.data`",
            Documented(
                "Weights written inside `batch.shards` are written for this process's later shards only, as often as "
                "it has shards. Where that goes through `.data`, PyTorch keeps no note of it, and it is refused only "
                'where the ranks come to differ ("the ranks have parted"): write weights behind the pass.',
            ),
        ),
        Row(
            "frozen_inside",
            "a layer is frozen inside `batch.shards`, by the loss of a shard, and stays so",
            Refused("was frozen or thawed (requires_grad) inside batch.shards"),
        ),
        Row(
            "counter_in_the_model",
            "a model that counts its forward passes in a plain attribute, and cools down by it",
            Documented(
                "A plain attribute that a model's forward pass changes (a counter, a running mean) is changed by this "
                "process's shards only: make it a buffer, which the shards bring together, or set it behind the pass.",
            ),
        ),
        Row(
            "saved_tensors_moved",
            "activations are moved away for the backward pass (save_on_cpu), with anomaly detection",
            EQUAL,
        ),
    ],
    "several networks": [
        Row("gan", "a GAN in the classic order: the judge learns and steps, then the generator by the new judge", PLAIN),
        Row("gan_with_noise", "a GAN that draws its noise in the shards and averages its losses for a log", EQUAL),
        Row(
            "gan_both_at_once",
            "a GAN with one forward pass: both losses in a shard, the judge frozen for the generator's",
            EQUAL,
        ),
        Row("wgan_clipped", "WGAN: several steps of the critic, whose weights are clipped, to one of the generator", EQUAL),
        Row("wgan_gradient_penalty", "WGAN-GP: three phases for the critic and one for the generator in every step", EQUAL),
        Row("cycle_gan", "two generators and two judges over two loaders, with toggled requires_grad", EQUAL),
        Row("distillation", "a frozen teacher that is not prepared", EQUAL),
        Row(
            "distillation_prepared_teacher",
            "a teacher with BatchNorm that is prepared too, in evaluation mode under no_grad",
            EQUAL,
        ),
        Row("mutual_learning", "two networks that learn from each other's outputs", EQUAL),
        Row("byol", "BYOL: an online network, a target that follows it with growing momentum", EQUAL),
        Row("simsiam", "SimSiam: two views of each sample, a stopped gradient", EQUAL),
        Row(
            "moco",
            "MoCo: a momentum encoder, and a queue that is filled behind the pass with the keys of all shards",
            EQUAL,
        ),
        Row(
            "queue_filled_inside",
            "a queue of keys that is filled inside `batch.shards`",
            Documented(
                "A queue (or memory) that is filled inside `batch.shards` gets this process's samples only. Collect "
                "them in a list inside, bring the lists together behind the pass (`team.all_gather_object(found)`: "
                "rank order is shard order), and fill the queue there.",
            ),
        ),
        Row("simclr", "SimCLR: each shard contrasts its own samples", EQUAL),
        Row(
            "contrast_over_all_shards",
            "a contrastive loss over the whole global batch: a phase for the embeddings, which are gathered, one for the loss",
            EQUAL,
        ),
        Row(
            "gathered_inside",
            "embeddings are gathered with `team.all_gather` inside `batch.shards`",
            Refused("all_gather inside batch.shards"),
        ),
        Row("triplets", "a triplet loss with negatives drawn from the shard", EQUAL),
        Row("centre_loss", "centre loss: centres that learn with an optimizer of their own", EQUAL),
        Row(
            "centre_of_outputs",
            "DINO: a student, a teacher, and a centre of the teacher's outputs, averaged over the global batch",
            EQUAL,
        ),
        Row("autoencoder", "a variational autoencoder, whose second term is faded in", EQUAL),
        Row("diffusion", "a diffusion model: times and noise are drawn in the shards", EQUAL),
        Row("policy_gradient", "REINFORCE: actions are drawn in the shards, the baseline follows the mean reward", EQUAL),
        Row("target_network", "Q-learning with a target network that is copied every second step", EQUAL),
        Row("co_teaching", "co-teaching: each of two networks learns from samples that the other finds easy", EQUAL),
        Row(
            "teacher_with_batch_norm_not_prepared",
            "a teacher with BatchNorm, not prepared and in training mode, and later in evaluation mode",
            Documented(
                "Buffers of a module that is not prepared (BatchNorm's running statistics in a teacher or a loss) "
                "follow this process's shards only: prepare it, make it a part of a prepared model, or keep it in "
                "evaluation mode.",
            ),
        ),
        Row(
            "loss_with_a_buffer",
            "a loss module whose centre follows the outputs, not prepared",
            Documented(
                "A loss that is a module with buffers which it changes (a centre, a queue) is not prepared with the "
                "model, so its buffers follow this process's shards only: make it a part of the model.",
            ),
        ),
        Row("loss_with_a_buffer_in_the_model", "the same loss module, prepared as a part of the model", EQUAL),
    ],
    "data": [
        Row("weighted_sampler", "samples are drawn by weight", EQUAL),
        Row("weights_by_loss", "hard examples: the sampler's weights follow the loss of each sample", EQUAL),
        Row("hard_examples", "online hard example mining: only the larger half of a shard's losses counts", EQUAL),
        Row(
            "hard_examples_of_all",
            "hard example mining over the global batch: a phase finds the limit, a second one learns",
            EQUAL,
        ),
        Row("batch_sampler", "a batch sampler of the script's own", EQUAL),
        Row("bucketed_by_length", "batches of sequences of similar length, padded by collate_fn", EQUAL),
        Row("curriculum", "a curriculum: a sampler that lets in harder samples from epoch to epoch", EQUAL),
        Row("sampler_with_own_generator", "a shuffle with a torch.Generator of the script's own", EQUAL),
        Row("drop_last", "`drop_last=True`", EQUAL),
        Row("subset_and_split", "random_split, Subset and ConcatDataset", EQUAL),
        Row("stream", "an IterableDataset", EQUAL),
        Row("stream_shuffled", "an IterableDataset with a shuffle buffer and random augmentation", EQUAL),
        Row("augmented", "a data set that augments at random, with torch, numpy and random", EQUAL),
        Row("augmented_in_workers", "the same in loader workers", EQUAL),
        Row("random_collate", "a collate_fn that masks words at random", EQUAL),
        Row("zipped_loaders", "labelled and unlabelled samples from two loaders side by side, whole batches only", EQUAL),
        Row(
            "zipped_shards_that_do_not_match",
            "`zip(a.shards, b.shards)` of batches of which one has fewer shards with samples",
            Refused("the shards of two batches side by side"),
        ),
        Row("two_loaders_in_turn", "two tasks in each step: a phase over a batch of each of two loaders", EQUAL),
        Row("shorter_loader_started_anew", "a shorter second loader that begins again when it is empty", EQUAL),
        Row(
            "nested_loaders",
            "a whole second loader inside each step of the first, its batches in phases of the step",
            EQUAL,
        ),
        Row("islice", "only the first batches of each pass (`itertools.islice`)", EQUAL),
        Row("by_next", "a loop over a number of steps that asks an iterator for the next batch and starts it anew", EQUAL),
        Row("endless_generator", "a generator that goes round and round over the loader", EQUAL),
        Row(
            "itertools_cycle",
            "`itertools.cycle(loader)`, which would hand out the batches of the first pass again",
            Refused("batch.shards outside of the loop that yielded the batch"),
        ),
        Row(
            "batches_kept",
            "`list(loader)`: batches that are used when their step is over",
            Refused("batch.shards outside of the loop that yielded the batch"),
        ),
        Row("one_batch_again_and_again", "overfitting one batch: many optimizer steps within its step", EQUAL),
        Row(
            "batch_of_a_lost_iterator",
            "`next(iter(loader))`, whose iterator nobody keeps",
            Refused("batch.shards outside of the loop that yielded the batch"),
        ),
        Row("batch_before_again", "the batch before is gone over again, in a phase of this step", EQUAL),
        Row("dict_batches", "batches that are dicts, with strings beside the tensors", EQUAL),
        Row("dataclass_batches", "batches that are dataclasses, made by collate_fn", EQUAL),
        Row("own_batch_class", "batches of a class of the script's own, with a method to()", EQUAL),
        Row("named_tuple_batches", "samples that are named tuples", EQUAL),
        Row("lists_of_sizes", "detection: a list of tensors of different sizes, which collate_fn leaves alone", EQUAL),
        Row("ready_batches", "a list of ready batches in place of a DataLoader", EQUAL),
        Row("made_up_batches", "batches that are drawn at random, without a data set", EQUAL),
        Row("read_once", "a generator of batches in place of a loader", Refused("a generator can be read only once")),
        Row("loader_of_each_epoch", "a new loader for each epoch, with larger batches (progressive training)", EQUAL),
        Row(
            "pretraining",
            "two trainings one after another: pretraining on one data set, fine-tuning with a new optimizer on another",
            EQUAL,
        ),
        Row("cross_validation", "cross-validation: a model, an optimizer and loaders for each fold, in one run", EQUAL),
        Row("mixup", "mixup within a shard", EQUAL),
        Row(
            "mixup_share_of_the_step",
            "mixup with one share for the whole step, drawn before the pass, and label smoothing",
            EQUAL,
        ),
        Row("cutmix", "cutmix within a shard", EQUAL),
        Row("class_weights", "class weights from the counts in each global batch, found in a phase of their own", EQUAL),
        Row(
            "cached_augmentation",
            "a data set that augments each sample once, and keeps the result",
            Documented(
                "A data set that remembers what it has drawn or counted does so in each process (and in each loader "
                "worker) for the samples that came there: make what is kept before the loop, on all ranks.",
            ),
        ),
        Row(
            "own_generator_inside",
            "numbers for a shard are drawn from a generator of the script's own",
            Documented(
                "A generator of the script's own (`torch.Generator()`, `numpy.random.default_rng()`) that is drawn "
                "from inside `batch.shards`, or in a data set, goes on from shard to shard of this process: draw from "
                "torch, `numpy.random` or `random` there, whose streams lockstep starts anew for each shard.",
            ),
        ),
    ],
    "control flow": [
        Row("enumerate_and_break", "a fixed number of steps: `enumerate`, and `break` behind a step", EQUAL),
        Row("break_before_a_phase", "`break` before the shards of a batch were gone over: that step does not count", EQUAL),
        Row("early_stopping_by_training_loss", "early stopping when the training loss has not fallen for two steps", EQUAL),
        Row("early_stopping_by_metric", "early stopping by the accuracy on other samples", EQUAL),
        Row("plateau_by_training_loss", "ReduceLROnPlateau on the training loss of every step", EQUAL),
        Row(
            "plateau_by_epoch_average",
            "ReduceLROnPlateau, not prepared, on the mean loss of each epoch (`loader.averages`)",
            EQUAL,
        ),
        Row("plateau_by_metric", "ReduceLROnPlateau on the loss of an evaluation", EQUAL),
        Row("schedule_of_each_step", "a schedule of steps (OneCycleLR), prepared, as long as the epochs", PLAIN),
        Row("schedules_chained", "a warm-up by steps, not prepared, and then a schedule of epochs", EQUAL),
        Row("rate_by_counter", "the learning rate is set by hand, by a counter of the script's own", PLAIN),
        Row("rate_by_loss", "the learning rate follows the training loss, and is drawn at random now and then", EQUAL),
        Row("batch_size_by_accumulation", "gradients are collected over more and more steps as training goes on", EQUAL),
        Row("step_skipped_by_condition", "a step is skipped where its loss is too high", PLAIN),
        Row("steps_left_out", "`continue` before the shards: batches are left out without being looked at", EQUAL),
        Row(
            "error_caught_around_a_step",
            "`try` and `except` around a step: an error on all processes (out of memory in the update, say)",
            EQUAL,
        ),
        Row(
            "error_caught_around_the_pass",
            "`try` and `except` around the pass over the shards: an error in one shard leaves the pass",
            Refused("that loop was left before its end"),
        ),
        Row(
            "shards_left_out",
            "`continue` inside `batch.shards`: a shard without a backward call adds nothing to the sum",
            EQUAL,
        ),
        Row("shards_of_weight_0", "shards are left out by `weight=0`, so that the mean is over the others", EQUAL),
        Row(
            "error_caught_in_a_shard",
            "`try`, `except` and `continue` around the work on a shard (out of memory, say)",
            EQUAL,
        ),
        Row(
            "error_caught_in_a_backward_pass",
            "an error in the middle of a shard's backward pass is caught: the gradients it had come to count, as in PyTorch",
            EQUAL,
        ),
        Row("evaluation_every_k_steps", "an evaluation every second step, inside the loop", EQUAL),
        Row("evaluation_by_hand", "an evaluation that every process does for itself, with a plain DataLoader", EQUAL),
        Row(
            "validation_with_a_prepared_loader",
            "a prepared loader is gone over under `no_grad`, for a validation",
            Refused("a prepared loader was iterated without gradients"),
        ),
        Row("saving_in_the_loop", "torch.save on rank 0 in the loop, and every rank reads the file behind a barrier", EQUAL),
        Row("best_kept_by_team", "`team.best` keeps the weights with the best result", EQUAL),
        Row("rolled_back", "model and optimizer go back to a copy in memory when the loss jumps", EQUAL),
        Row("time_limit", "a time limit that all processes agree on (`team.any`)", EQUAL),
        Row("random_choice_of_a_step", "each step draws which of two losses it trains", EQUAL),
        Row("registered_counters", "counters and running means that belong to the run's state (`team.register`)", EQUAL),
        Row(
            "counter_inside",
            "samples are counted inside `batch.shards`, and the learning rate follows the count",
            Refused("the ranks have parted", alone=False),
        ),
        Row(
            "last_loss_decides",
            'the loss of the last shard, and not `batch["loss"]`, decides over the learning rate',
            Refused("the ranks have parted", alone=False),
        ),
        Row(
            "drawn_on_rank_0",
            "rank 0 alone draws random numbers behind the pass, and all draw after it",
            Refused("the ranks have parted", alone=False),
        ),
        Row("written_on_rank_0", "rank 0 alone changes the weights", Refused("the ranks have parted", alone=False)),
        Row(
            "rank_in_the_answer",
            "the learning rate is multiplied by the number of processes",
            Documented(
                "Code that lets the number of processes (or the time, or the host) into the answer has another answer "
                "for each.",
            ),
        ),
        Row("functions_and_classes", "the loop in a Trainer class, with callbacks", EQUAL),
        Row("threads_set_by_the_script", "`torch.set_num_threads` in the script, before the loop", EQUAL),
        Row("own_seed", "`torch.manual_seed` in the script, before the model and in every step", EQUAL),
        Row(
            "shards_numbered",
            "`enumerate(batch.shards)`, with a loss that depends on the number",
            Documented(
                "`enumerate(batch.shards)` counts this process's shards, from 0 on every process: the numbers are not "
                "those of the shards.",
            ),
        ),
        Row("phases_until_good", "a batch is trained again and again until its loss is low enough", EQUAL),
    ],
    "logging": [
        Row("team_log", "`team.log` inside the pass and behind it", EQUAL),
        Row("logging_by_hand", "a CSV file and Python's logging, on rank 0", EQUAL),
        Row("progress_bar", "a progress bar around the loader, with the loss of each step", EQUAL),
        Row("summary_writer", "TensorBoard's SummaryWriter on rank 0", EQUAL, heavy=True),
        Row("several_values", "values with weights of their own, added in two phases and read by name", EQUAL),
        Row("timing", "steps are timed, and the times are shown on rank 0", EQUAL),
        Row(
            "confusion_matrix",
            "a table that is counted in the shards and added up over all processes behind the pass",
            EQUAL,
        ),
        Row(
            "summed_by_all_reduce",
            "losses are added up in each process, and by `team.all_reduce` over the processes",
            Documented(
                "Floating numbers that each process has added up over its own shards and `team.all_reduce` adds up "
                "over the processes are added in another order at another number of processes: equal up to rounding. "
                "`batch.add` adds them up in shard order (whole numbers are exact either way).",
            ),
        ),
        Row(
            "metric_object",
            "a metric of torchmetrics that is updated in the shards and brings the ranks together behind the pass",
            EQUAL,
            heavy=True,
        ),
    ],
    "misuse": [
        Row("batch_unpacked", "`images, labels = batch`", Refused("the batch was unpacked, or iterated")),
        Row(
            "loop_unpacks_batches",
            "`for images, labels in loader`, as without lockstep",
            Refused("the batch was unpacked, or iterated"),
        ),
        Row(
            "model_of_a_batch",
            "`model(batch)`",
            Refused("Linear(batch): a prepared loader yields one global batch a step"),
        ),
        Row("batch_indexed", "`batch[0]`", Refused("batch[0]: a prepared loader yields one global batch a step")),
        Row("batch_moved", "`batch.to(device)`", Refused("batch.to: a prepared loader yields one global batch a step")),
        Row(
            "key_of_a_dict_batch",
            '`batch["x"]` of samples that are dicts',
            Refused("If it is part of the data, read it inside"),
        ),
        Row("batch_measured", "`len(batch)`", Refused("len(batch): a prepared loader yields one global batch a step")),
        Row(
            "loss_backward",
            "`loss.backward()` in place of `team.backward(loss)`",
            Refused("has a gradient that did not come through team.backward(loss)"),
        ),
        Row("backward_outside", "`team.backward` outside of `batch.shards`", Refused("backward() outside of batch.shards")),
        Row("step_inside", "`optimizer.step()` inside `batch.shards`", Refused("SGD.step() inside batch.shards")),
        Row("zero_inside", "`optimizer.zero_grad()` inside `batch.shards`", Refused("SGD.zero_grad() inside batch.shards")),
        Row("schedule_inside", "`schedule.step()` inside `batch.shards`", Refused("schedule.step() inside batch.shards")),
        Row(
            "scaler_inside",
            "`scaler.step(optimizer)` inside `batch.shards`",
            Refused("GradScaler.step() inside batch.shards"),
        ),
        Row(
            "team_clip_inside",
            "`team.clip_grad_norm_` inside `batch.shards`",
            Refused("team.clip_grad_norm_() inside batch.shards"),
        ),
        Row("break_inside", "`break` out of `batch.shards`", Refused("that loop was left before its end")),
        Row("all_reduce_inside", "`team.all_reduce` inside `batch.shards`", Refused("all_reduce inside batch.shards")),
        Row("barrier_inside", "`team.barrier` inside `batch.shards`", Refused("barrier inside batch.shards")),
        Row("any_inside", "`team.any` inside `batch.shards`", Refused("any inside batch.shards")),
        Row(
            "main_first_inside",
            "`team.main_first` inside `batch.shards`",
            Refused("team.main_first() inside batch.shards"),
        ),
        Row("evaluate_inside", "`team.evaluate` inside `batch.shards`", Refused("team.evaluate() inside batch.shards")),
        Row("best_inside", "`team.best` inside `batch.shards`", Refused("team.best() inside batch.shards")),
        Row(
            "value_read_inside",
            '`batch["loss"]` is read inside `batch.shards`',
            Refused("batch['loss'] inside batch.shards"),
        ),
        Row("value_never_added", '`batch["accuracy"]` that nobody added', Refused("no value of that name was added")),
        Row(
            "value_added_outside",
            "`batch.add` outside of `batch.shards`",
            Refused("batch.add(loss) outside of batch.shards"),
        ),
        Row(
            "nested_shards",
            "`batch.shards` inside `batch.shards`",
            Refused("another loop over batch.shards inside batch.shards"),
        ),
        Row(
            "next_batch_inside",
            "the next batch is taken inside `batch.shards`",
            Refused("the next step inside batch.shards"),
        ),
        Row("loss_not_a_scalar", "a loss for each sample", Refused("the loss must be a scalar tensor")),
        Row("loss_not_a_number", "a loss that is not a number", Refused("the loss is NaN")),
        Row("model_not_prepared", "an optimizer whose model was not prepared", Refused("belong to no prepared model")),
        Row(
            "distributed_sampler",
            "a DistributedSampler, as for DistributedDataParallel",
            Refused("this DataLoader has a DistributedSampler"),
        ),
        Row(
            "wrapped_already",
            "a model that is in a DataParallel already",
            Refused("the model is already in a DataParallel"),
        ),
        Row(
            "shards_listed",
            "`list(batch.shards)`, and a loop over the list",
            Refused("backward() outside of batch.shards"),
        ),
        Row(
            "rate_inside",
            "the learning rate is set inside `batch.shards`",
            Refused("a learning rate that was changed there by hand"),
        ),
        Row(
            "unprepared_step_inside",
            "`step()` of an optimizer that is not prepared, inside `batch.shards`",
            Refused("SGD.step() inside batch.shards"),
        ),
        Row(
            "split_before_join",
            "`random_split` before `join`, in another way on each rank",
            Refused("the ranks have different data", alone=False),
        ),
        Row(
            "data_drawn_before_join",
            "a data set of random numbers that is drawn before `join`",
            Refused("the ranks have different data", alone=False),
        ),
        Row(
            "stream_split_by_rank",
            "a stream of which each rank takes every nth sample, as many as the others",
            Refused("the ranks have different data", alone=False),
        ),
        Row(
            "ready_batches_split_by_rank",
            "a list of ready batches, of which each rank takes its own",
            Refused("the ranks have different data", alone=False),
        ),
    ],
}
ROWS = [row for rows in TABLE.values() for row in rows]
