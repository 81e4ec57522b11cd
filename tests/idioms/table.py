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
        Row("sgd", "SGD", PLAIN),
        Row("sgd_momentum", "SGD with momentum", PLAIN),
        Row("sgd_nesterov", "SGD, Nesterov, weight decay", PLAIN),
        Row("sgd_maximize", "gradient ascent (`maximize=True`)", PLAIN),
        Row("sgd_foreach", "SGD with `foreach=True`", PLAIN),
        Row("sgd_fused", "SGD with `fused=True`", PLAIN),
        Row("adam", "Adam", PLAIN),
        Row("adam_amsgrad", "Adam with AMSGrad", PLAIN),
        Row("adam_fused", "Adam with `fused=True`", PLAIN),
        Row("adamw", "AdamW", PLAIN),
        Row("adamax", "Adamax", PLAIN),
        Row("nadam", "NAdam", PLAIN),
        Row("radam", "RAdam", PLAIN),
        Row("rmsprop", "RMSprop, centered, with momentum", PLAIN),
        Row("rprop", "Rprop", PLAIN),
        Row("adagrad", "Adagrad, rate decay", PLAIN),
        Row("adadelta", "Adadelta", PLAIN),
        Row("asgd", "ASGD", PLAIN),
        Row("adafactor", "Adafactor", PLAIN),
        Row("muon", "Muon with AdamW", EQUAL),
        Row("lbfgs", "L-BFGS", PLAIN),
        Row("lbfgs_line_search", "L-BFGS with line search", PLAIN),
        Row("adam_closure", "Adam's `step(closure)`", EQUAL),
        Row("sparse_adam", "SparseAdam on sparse gradients", Refused("has a sparse gradient")),
        Row("parameter_groups", "parameter groups", EQUAL),
        Row("two_optimizers", "two optimizers in turn", EQUAL),
        Row("own_optimizer", "a custom optimizer (Lion)", EQUAL),
        Row("update_by_hand", "weights updated by hand", PLAIN),
        Row("update_through_data", "weights written through `p.data`", EQUAL),
        Row("sign_sgd", "signSGD", EQUAL),
        Row("optimizer_exchanged", "an optimizer exchanged mid-run", EQUAL),
        Row("optimizer_not_prepared", "an unprepared optimizer", EQUAL),
        Row("optimizer_state_reset", "optimizer state reset", EQUAL),
        Row("add_param_group", "`add_param_group` mid-run", EQUAL),
        Row("optimizer_hooks", "optimizer hooks", EQUAL),
        Row("zero_at_the_start", "`zero_grad()` at the start", PLAIN),
        Row("zero_to_zeros", "`zero_grad(set_to_none=False)`", EQUAL),
        Row("never_cleared", "gradients never cleared", PLAIN),
        Row(
            "optimizer_in_backward",
            "an optimizer step in backward hooks",
            Refused("SGD.step() inside batch.shards"),
        ),
        Row("lookahead", "Lookahead", PLAIN),
        Row("sam", "SAM", PLAIN),
        Row("sgld", "Langevin dynamics", EQUAL),
        Row("svrg", "SVRG", EQUAL),
        Row("evolution_strategy", "an evolution strategy", EQUAL),
        Row("reptile", "Reptile", EQUAL),
    ],
    "gradients": [
        Row("clip_norm", "`torch.nn.utils.clip_grad_norm_`", PLAIN),
        Row("clip_norm_by_team", "`team.clip_grad_norm_`", EQUAL),
        Row("clip_value", "clipping by value", PLAIN),
        Row("adaptive_clipping", "adaptive clipping (AGC)", EQUAL),
        Row("clip_by_history", "AutoClip", EQUAL),
        Row("parameter_hooks", "parameter hooks that clamp gradients", PLAIN),
        Row("masked_by_hooks", "hooks that keep weights at zero", EQUAL),
        Row("gradient_noise", "decaying gradient noise", EQUAL),
        Row("gradient_centralisation", "gradient centralization", EQUAL),
        Row("top_k_gradient", "top-k gradients", EQUAL),
        Row("gradients_replaced", "gradients saved and restored", EQUAL),
        Row("accumulated_by_hand", "accumulation by hand", PLAIN),
        Row("accumulated_to_the_end", "accumulation by hand, partial end", EQUAL),
        Row("accumulate_setting", "`accumulate=3`, partial end", EQUAL),
        Row("loss_scaled_by_hand", "a fixed loss scale", EQUAL),
        Row("own_grad_scaler", "the script's own GradScaler", EQUAL),
        Row("gradient_norm_logged", "gradient norms logged", EQUAL),
        Row("step_skipped_for_large_gradient", "steps skipped for large gradients", EQUAL),
        Row("gradient_penalty", "a penalty on input gradients", EQUAL),
        Row("second_order_weights", "a penalty on weight gradients", EQUAL),
        Row("create_graph_in_backward", "`team.backward(loss, create_graph=True)`", Refused("backward(create_graph=True)")),
        Row("maml", "MAML", EQUAL),
        Row("adversarial_examples", "adversarial training (FGSM)", EQUAL),
        Row("dp_sgd", "differential privacy (DP-SGD)", EQUAL),
        Row("gradient_surgery", "PCGrad", EQUAL),
        Row("several_losses", "several losses", EQUAL),
        Row("several_backward_calls", "two backward calls", PLAIN),
        Row("summed_loss", 'a summed loss (`reduction="sum"`)', PLAIN),
        Row("summed_loss_by_global_size", "a loss divided by `batch.num_samples`", EQUAL),
        Row("summed_loss_not_said", 'a summed loss without `reduction="sum"`', Refused("is a sum over its")),
        Row("token_weights", "a mean over tokens", EQUAL),
        Row("shards_of_no_weight", "weight 0 without valid targets", EQUAL),
        Row("deep_supervision", "losses at several depths", EQUAL),
        Row("uncertainty_weighting", "learned loss weights", EQUAL),
        Row("hutchinson_curvature", "AdaHessian", EQUAL),
        Row("fisher_information", "elastic weight consolidation", EQUAL),
        Row(
            "sum_by_hand",
            "a running sum of the shards' losses",
            Documented(
                'It covers this process\'s shards only: use `batch.add(loss=loss)`, `batch["loss"]` outside.',
            ),
        ),
        Row("clip_inside", "`clip_grad_norm_` inside `batch.shards`", Refused("a gradient was used inside batch.shards")),
        Row("own_generator_outside", "an own generator, outside", EQUAL),
        Row("functional_call_of_the_prepared_model", "`functional_call`", EQUAL),
    ],
    "averages of weights": [
        Row("ema_by_hand", "EMA by hand", PLAIN),
        Row("ema_pulled_back", "EMA in a dict", EQUAL),
        Row("averaged_model", "AveragedModel", PLAIN),
        Row("averaged_model_ema", "AveragedModel, unprepared", EQUAL),
        Row("swa", "SWA with `update_bn`", EQUAL),
        Row("mean_teacher", "a mean teacher", EQUAL),
        Row("ema_swapped_for_evaluation", "averages swapped in for evaluation", EQUAL),
        Row("best_weights_kept", "best weights restored", EQUAL),
        Row("weight_soup", "a weight soup", EQUAL),
        Row(
            "ema_by_hand_inside",
            "EMA by hand inside",
            Documented("It moves once per shard of this process: write it outside, after `optimizer.step()`."),
        ),
        Row(
            "ema_inside",
            "`AveragedModel.update_parameters` inside",
            Refused("AveragedModel.update_parameters() inside batch.shards"),
        ),
        Row("ema_copied_after_prepare", "EMA in a `copy.deepcopy`", EQUAL),
        Row("averaged_model_after_prepare", "AveragedModel of the prepared model", EQUAL),
    ],
    "models": [
        Row("dropout", "dropout", EQUAL),
        Row("batch_norm", "BatchNorm", EQUAL),
        Row("batch_norm_frozen", "BatchNorm frozen after an epoch", EQUAL),
        Row("other_normalisations", "GroupNorm, LayerNorm, InstanceNorm", EQUAL),
        Row("sync_batch_norm", "SyncBatchNorm", Refused("is SyncBatchNorm, which takes its statistics over the processes")),
        Row("actnorm", "ActNorm, initialized in a phase", EQUAL),
        Row("weight_norm", "weight norm", EQUAL),
        Row("spectral_norm", "spectral norm", EQUAL),
        Row("orthogonal_weights", "an orthogonal parametrization", EQUAL),
        Row("tied_weights", "tied weights", EQUAL),
        Row("layer_drop", "LayerDrop", EQUAL),
        Row("stochastic_depth", "stochastic depth", EQUAL),
        Row("mixture_of_experts", "a mixture of experts", EQUAL),
        Row("unused_parameters", "an unused layer", EQUAL),
        Row("checkpointing", "activation checkpointing", EQUAL),
        Row("checkpointing_reentrant", "activation checkpointing (`use_reentrant=True`)", EQUAL),
        Row("compiled", "`torch.compile` before `prepare`", EQUAL, heavy=True),
        Row("frozen_backbone", "a frozen backbone", EQUAL),
        Row("frozen_in_mid_run", "a layer frozen mid-run", PLAIN),
        Row("frozen_at_random", "parameters frozen at random", EQUAL),
        Row("gradual_thawing", "gradual unfreezing", EQUAL),
        Row("lora", "LoRA", EQUAL),
        Row("bitfit", "BitFit", EQUAL),
        Row("prompt_tuning", "prompt tuning", EQUAL),
        Row("recurrent", "an LSTM", EQUAL),
        Row("hidden_state_carried", "hidden state in `team.per_shard`", EQUAL),
        Row(
            "hidden_state_in_a_variable",
            "a hidden state kept in a variable",
            Documented(
                "It comes from whichever shard this process ran last: use `team.per_shard(name, start)`.",
            ),
        ),
        Row("truncated_backpropagation", "truncated backpropagation", EQUAL),
        Row("attention", "a transformer layer", EQUAL),
        Row("embedding_max_norm", "an embedding with `max_norm`", Refused("was changed inside batch.shards")),
        Row("embedding_renormalised", "embedding rows renormalized", EQUAL),
        Row("neurons_reinitialised", "dead neurons reinitialized", EQUAL),
        Row("magnitude_pruning", "magnitude pruning", EQUAL),
        Row("pruned_by_torch", "`torch.nn.utils.prune`", EQUAL),
        Row("lottery_ticket", "a lottery ticket", EQUAL),
        Row("growing_model", "a layer added mid-run", Refused("belongs to no prepared model")),
        Row("hooks_for_activations", "an activation penalty (forward hook)", EQUAL),
        Row("own_autograd_function", "custom autograd functions", EQUAL),
        Row("fake_quantisation", "quantization-aware training", EQUAL),
        Row("input_statistics", "running input statistics", EQUAL),
        Row("vq_codebook", "a VQ-VAE's codebook", EQUAL),
        Row("growing_buffer", "a buffer that grows", Refused("the buffer 'seen' of Growing became")),
        Row("double_precision", "float64", EQUAL),
        Row("own_autocast", "the script's own `torch.autocast`", EQUAL),
        Row("mixed_precision", '`precision="16-mixed"`', EQUAL),
        Row("lazy_layers", "lazy layers", EQUAL),
        Row("written_inside", "weights clamped inside", Refused("was changed inside batch.shards")),
        Row(
            "written_inside_through_data",
            "weight decay through `p.data` inside",
            Documented(
                "It acts once per shard of this process, and is refused only when ranks come to differ: write outside.",
            ),
        ),
        Row(
            "frozen_inside",
            "a layer frozen inside",
            Refused("was frozen or unfrozen (requires_grad) inside batch.shards"),
        ),
        Row(
            "counter_in_the_model",
            "a counter in a plain attribute of the model",
            Documented(
                "Only this process's shards change it: use a buffer, which is combined over the shards, or set it outside.",
            ),
        ),
        Row("saved_tensors_moved", "`save_on_cpu`, with anomaly detection", EQUAL),
    ],
    "several networks": [
        Row("gan", "a GAN", PLAIN),
        Row("gan_with_noise", "a GAN, noise drawn inside", EQUAL),
        Row("gan_both_at_once", "a GAN, one forward pass", EQUAL),
        Row("wgan_clipped", "a WGAN", EQUAL),
        Row("wgan_gradient_penalty", "WGAN-GP", EQUAL),
        Row("cycle_gan", "a CycleGAN", EQUAL),
        Row("distillation", "an unprepared frozen teacher", EQUAL),
        Row("distillation_prepared_teacher", "a prepared teacher with BatchNorm", EQUAL),
        Row("mutual_learning", "mutual learning", EQUAL),
        Row("byol", "BYOL", EQUAL),
        Row("simsiam", "SimSiam", EQUAL),
        Row("moco", "MoCo, its queue filled outside", EQUAL),
        Row(
            "queue_filled_inside",
            "a queue filled inside",
            Documented(
                "It gets this process's samples only: fill it outside, from `team.all_gather_object(found)` (rank "
                "order is shard order).",
            ),
        ),
        Row("simclr", "SimCLR: contrast within a shard", EQUAL),
        Row("contrast_over_all_shards", "contrast over the global batch", EQUAL),
        Row("gathered_inside", "`team.all_gather` inside", Refused("all_gather inside batch.shards")),
        Row("triplets", "a triplet loss", EQUAL),
        Row("centre_loss", "center loss", EQUAL),
        Row("centre_of_outputs", "DINO", EQUAL),
        Row("autoencoder", "a variational autoencoder", EQUAL),
        Row("diffusion", "a diffusion model", EQUAL),
        Row("policy_gradient", "REINFORCE", EQUAL),
        Row("target_network", "Q-learning", EQUAL),
        Row("co_teaching", "co-teaching", EQUAL),
        Row(
            "teacher_with_batch_norm_not_prepared",
            "an unprepared teacher with BatchNorm in training mode",
            Documented(
                "Its statistics follow this process's shards: prepare it, or keep it in evaluation mode.",
            ),
        ),
        Row(
            "loss_with_a_buffer",
            "an unprepared loss module with a buffer",
            Documented(
                "Its buffers follow this process's shards: make it part of the model.",
            ),
        ),
        Row("loss_with_a_buffer_in_the_model", "a loss module in the model", EQUAL),
    ],
    "data": [
        Row("weighted_sampler", "WeightedRandomSampler", EQUAL),
        Row("weights_by_loss", "sampler weights that follow losses", EQUAL),
        Row("hard_examples", "hard example mining within a shard", EQUAL),
        Row("hard_examples_of_all", "hard example mining, global", EQUAL),
        Row("batch_sampler", "a custom batch sampler", EQUAL),
        Row("bucketed_by_length", "length buckets", EQUAL),
        Row("curriculum", "a curriculum sampler", EQUAL),
        Row("sampler_with_own_generator", "a sampler's own `torch.Generator`", EQUAL),
        Row("drop_last", "`drop_last=True`", EQUAL),
        Row("subset_and_split", "`random_split`, Subset, ConcatDataset", EQUAL),
        Row("stream", "an IterableDataset", EQUAL),
        Row("stream_shuffled", "a stream with shuffle buffer", EQUAL),
        Row("augmented", "augmentation", EQUAL),
        Row("augmented_in_workers", "augmentation in loader workers", EQUAL),
        Row("random_collate", "random masking in `collate_fn`", EQUAL),
        Row("zipped_loaders", "two loaders zipped", EQUAL),
        Row(
            "zipped_shards_that_do_not_match",
            "`zip(a.shards, b.shards)`, unequal numbers",
            Refused("the shards of two batches side by side"),
        ),
        Row("two_loaders_in_turn", "two loaders, a phase each", EQUAL),
        Row("shorter_loader_started_anew", "a shorter second loader, restarted", EQUAL),
        Row("nested_loaders", "a second loader inside each step", EQUAL),
        Row(
            "next_of_a_plain_loader_inside",
            "`next()` of an unprepared loader inside",
            Documented(
                "Which batch a shard gets follows from the shards before it on this process: prepare that loader too "
                "(`zip(first, second)`), or call `next()` outside.",
            ),
        ),
        Row("islice", "`itertools.islice`", EQUAL),
        Row("by_next", "`next()`", EQUAL),
        Row("endless_generator", "an endless generator", EQUAL),
        Row(
            "itertools_cycle",
            "`itertools.cycle(loader)`",
            Refused("batch.shards outside of the loop that yielded the batch"),
        ),
        Row("batches_kept", "`list(loader)`", Refused("batch.shards outside of the loop that yielded the batch")),
        Row("one_batch_again_and_again", "overfitting one batch", EQUAL),
        Row(
            "batch_of_a_lost_iterator",
            "`next(iter(loader))`, iterator not kept",
            Refused("batch.shards outside of the loop that yielded the batch"),
        ),
        Row("batch_before_again", "the previous batch again", EQUAL),
        Row("dict_batches", "batches that are dicts", EQUAL),
        Row("dataclass_batches", "batches that are dataclasses", EQUAL),
        Row("own_batch_class", "a custom batch class", EQUAL),
        Row("named_tuple_batches", "named tuples", EQUAL),
        Row("lists_of_sizes", "lists of tensors (detection)", EQUAL),
        Row("ready_batches", "a list of ready-made batches", EQUAL),
        Row("made_up_batches", "random batches without a data set", EQUAL),
        Row("read_once", "a generator instead of a loader", Refused("a generator can be read only once")),
        Row("loader_of_each_epoch", "a new loader each epoch", EQUAL),
        Row("pretraining", "pretraining, then fine-tuning", EQUAL),
        Row("cross_validation", "cross-validation", EQUAL),
        Row("mixup", "mixup", EQUAL),
        Row("mixup_share_of_the_step", "mixup, one coefficient a step", EQUAL),
        Row("cutmix", "cutmix", EQUAL),
        Row("class_weights", "class weights from each batch", EQUAL),
        Row(
            "cached_augmentation",
            "a data set that caches its augmentation",
            Documented(
                "Each process and loader worker caches what it drew: fill caches before the loop, on all ranks.",
            ),
        ),
        Row(
            "own_generator_inside",
            "a generator of the script's own, drawn inside",
            Documented(
                "`torch.Generator()` or `numpy.random.default_rng()`, also in a data set, runs on from shard to shard: draw "
                "from torch, `numpy.random` or `random`, which lockstep reseeds.",
            ),
        ),
    ],
    "control flow": [
        Row("enumerate_and_break", "`enumerate(loader)` and `break`", EQUAL),
        Row("break_before_a_phase", "`break` before the shards (no step)", EQUAL),
        Row("early_stopping_by_training_loss", "early stopping by training loss", EQUAL),
        Row("early_stopping_by_metric", "early stopping by accuracy", EQUAL),
        Row("plateau_by_training_loss", "ReduceLROnPlateau by training loss", EQUAL),
        Row("plateau_by_epoch_average", "ReduceLROnPlateau by `loader.averages`", EQUAL),
        Row("plateau_by_metric", "ReduceLROnPlateau by evaluation loss", EQUAL),
        Row("schedule_of_each_step", "OneCycleLR", PLAIN),
        Row("schedules_chained", "an unprepared warm-up", EQUAL),
        Row("rate_by_counter", "the learning rate from a counter", PLAIN),
        Row("rate_by_loss", "the learning rate from the loss", EQUAL),
        Row("batch_size_by_accumulation", "growing accumulation", EQUAL),
        Row("step_skipped_by_condition", "a step skipped for a high loss", PLAIN),
        Row("steps_left_out", "`continue` before the shards", EQUAL),
        Row("error_caught_around_a_step", "`try`/`except` around a step", EQUAL),
        Row(
            "error_caught_around_the_pass",
            "`try`/`except` around the pass",
            Refused("that loop was left before its end"),
        ),
        Row("shards_left_out", "`continue` inside (adds nothing to the sum)", EQUAL),
        Row("shards_of_weight_0", "`weight=0` (a mean over the others)", EQUAL),
        Row("error_caught_in_a_shard", "`try`/`except`/`continue` inside", EQUAL),
        Row("error_caught_in_a_backward_pass", "an error caught in `backward` (partial gradients count)", EQUAL),
        Row("evaluation_every_k_steps", "evaluation every second step", EQUAL),
        Row("evaluation_by_hand", "a plain DataLoader for evaluation", EQUAL),
        Row(
            "validation_with_a_prepared_loader",
            "a prepared loader under `no_grad`",
            Refused("a prepared loader was iterated with gradients disabled"),
        ),
        Row("saving_in_the_loop", "`torch.save` on rank 0", EQUAL),
        Row("best_kept_by_team", "`team.best`", EQUAL),
        Row("rolled_back", "rollback when the loss jumps", EQUAL),
        Row("time_limit", "a time limit by `team.any`", EQUAL),
        Row("random_choice_of_a_step", "a loss drawn each step", EQUAL),
        Row("registered_counters", "`team.register`", EQUAL),
        Row(
            "counter_inside",
            "a rate that follows samples counted inside",
            Refused("the ranks have parted", alone=False),
        ),
        Row(
            "last_loss_decides",
            "a rate that follows the last shard's loss",
            Refused("the ranks have parted", alone=False),
        ),
        Row("drawn_on_rank_0", "random numbers drawn on rank 0 only", Refused("the ranks have parted", alone=False)),
        Row("written_on_rank_0", "weights changed on rank 0 only", Refused("the ranks have parted", alone=False)),
        Row(
            "rank_in_the_answer",
            "a learning rate multiplied by the world size",
            Documented(
                "The number of processes (or the time, or the host) becomes part of the answer.",
            ),
        ),
        Row("functions_and_classes", "a Trainer class", EQUAL),
        Row("threads_set_by_the_script", "`torch.set_num_threads`", EQUAL),
        Row("own_seed", "`torch.manual_seed` every step", EQUAL),
        Row(
            "shards_numbered",
            "`enumerate(batch.shards)`",
            Documented(
                "It counts this process's shards from 0, not shard numbers.",
            ),
        ),
        Row("phases_until_good", "phases until the loss is low", EQUAL),
    ],
    "logging": [
        Row("team_log", "`team.log`", EQUAL),
        Row("logging_by_hand", "`logging` and CSV on rank 0", EQUAL),
        Row("progress_bar", "a progress bar", EQUAL),
        Row("summary_writer", "SummaryWriter on rank 0", EQUAL, heavy=True),
        Row("several_values", "values with weights of their own", EQUAL),
        Row("timing", "step times printed", EQUAL),
        Row("confusion_matrix", "a confusion matrix", EQUAL),
        Row(
            "summed_by_all_reduce",
            "losses summed by `team.all_reduce`",
            Documented(
                "Equal up to rounding; `batch.add` adds in shard order. (Integers are exact.)",
            ),
        ),
        Row("metric_object", "torchmetrics", EQUAL, heavy=True),
    ],
    "misuse": [
        Row("batch_unpacked", "`images, labels = batch`", Refused("the batch was unpacked, or iterated")),
        Row("loop_unpacks_batches", "`for images, labels in loader`", Refused("the batch was unpacked, or iterated")),
        Row(
            "model_of_a_batch", "`model(batch)`", Refused("Linear(batch): a prepared loader yields one global batch a step")
        ),
        Row("batch_indexed", "`batch[0]`", Refused("batch[0]: a prepared loader yields one global batch a step")),
        Row("batch_moved", "`batch.to(device)`", Refused("batch.to: a prepared loader yields one global batch a step")),
        Row("key_of_a_dict_batch", '`batch["x"]` of dict samples', Refused("If it is part of the data, read it inside")),
        Row("batch_measured", "`len(batch)`", Refused("len(batch): a prepared loader yields one global batch a step")),
        Row("loss_backward", "`loss.backward()`", Refused("has a gradient that was not computed by team.backward(loss)")),
        Row("backward_outside", "`team.backward` outside", Refused("backward() outside of batch.shards")),
        Row("step_inside", "`optimizer.step()` inside", Refused("SGD.step() inside batch.shards")),
        Row("zero_inside", "`optimizer.zero_grad()` inside", Refused("SGD.zero_grad() inside batch.shards")),
        Row("schedule_inside", "`schedule.step()` inside", Refused("schedule.step() inside batch.shards")),
        Row("scaler_inside", "`scaler.step(optimizer)` inside", Refused("GradScaler.step() inside batch.shards")),
        Row("team_clip_inside", "`team.clip_grad_norm_` inside", Refused("team.clip_grad_norm_() inside batch.shards")),
        Row("break_inside", "`break` out of `batch.shards`", Refused("that loop was left before its end")),
        Row("all_reduce_inside", "`team.all_reduce` inside", Refused("all_reduce inside batch.shards")),
        Row("barrier_inside", "`team.barrier` inside", Refused("barrier inside batch.shards")),
        Row("any_inside", "`team.any` inside", Refused("any inside batch.shards")),
        Row("main_first_inside", "`team.main_first` inside", Refused("team.main_first() inside batch.shards")),
        Row("evaluate_inside", "`team.evaluate` inside", Refused("team.evaluate() inside batch.shards")),
        Row("best_inside", "`team.best` inside", Refused("team.best() inside batch.shards")),
        Row("value_read_inside", '`batch["loss"]` read inside', Refused("batch['loss'] inside batch.shards")),
        Row("value_never_added", '`batch["accuracy"]` never added', Refused("no value of that name was added")),
        Row("value_added_outside", "`batch.add` outside", Refused("batch.add(loss) outside of batch.shards")),
        Row("nested_shards", "nested `batch.shards`", Refused("another loop over batch.shards inside batch.shards")),
        Row("next_batch_inside", "the next batch taken inside", Refused("the next step inside batch.shards")),
        Row("loss_not_a_scalar", "a loss per sample", Refused("the loss must be a scalar tensor")),
        Row("loss_not_a_number", "a NaN loss", Refused("the loss is NaN")),
        Row("model_not_prepared", "an optimizer of an unprepared model", Refused("belong to no prepared model")),
        Row("distributed_sampler", "a DistributedSampler", Refused("this DataLoader has a DistributedSampler")),
        Row("wrapped_already", "a model already in DataParallel", Refused("the model is already in a DataParallel")),
        Row("shards_listed", "`list(batch.shards)`", Refused("backward() outside of batch.shards")),
        Row("rate_inside", "the learning rate set inside", Refused("a learning rate that was changed there by hand")),
        Row("unprepared_step_inside", "an unprepared `optimizer.step()` inside", Refused("SGD.step() inside batch.shards")),
        Row(
            "split_before_join",
            "unseeded `random_split` before `join`",
            Refused("the ranks have different data", alone=False),
        ),
        Row(
            "data_drawn_before_join",
            "random data drawn before `join`",
            Refused("the ranks have different data", alone=False),
        ),
        Row("stream_split_by_rank", "a stream split by rank", Refused("the ranks have different data", alone=False)),
        Row(
            "ready_batches_split_by_rank",
            "ready-made batches split by rank",
            Refused("the ranks have different data", alone=False),
        ),
    ],
}
ROWS = [row for rows in TABLE.values() for row in rows]
