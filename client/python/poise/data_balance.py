# SPDX-License-Identifier: Apache-2.0
"""Drop-in for the data balance of the system that poise descends from: the same names, arguments and order, the same
dicts.

    data_balancer = DataBalance(args.virtual_pipeline_model_parallel_size, args.mm_model,
                                args.data_balance_sorting_algo, len(model), train_data_iterator)
    ...
    batches = data_balancer.build_balanced_train_data_iterator(is_vit_last_stage=..., max_batch_capacity=...,
                                                               micro_batch_size=..., num_microbatches=...,
                                                               data_type="image")

Each call of build_balanced_train_data_iterator() is one step: one batch of the loader on each rank, given back as
num_microbatches balanced micro-batches. The group is opened by the first call, which knows their size. The batch of the
next step is read, and sent by a thread, before the call returns: plan and exchange go on while the trainer computes.

What one rank's loader gives or raises must not leave the others waiting: whatever is wrong with a step becomes its
outcome on all ranks, and the call for that step raises it. docs/coming-from.md has the table of what differs.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import ranks
from .arguments import DEFAULT_ALGORITHM, OLD_ALGORITHMS, REFERENCE
from .batch import Batch
from .collated import CONSTANT, KEYS, Collated, Frame, Layout, Parts
from .errors import Aborted, EndOfData, Interrupted, InvalidInput, PoiseError, PoiseWarning, StepError
from .group import Group
from .media import AUDIO, IMAGE, VIDEO, PerSample
from .micro_batches import Cut, MicroBatches, Reading
from .model_config import ModelCost, model_cost
from .options import Phase, phases_of
from .reassemble import check_first
from .samples import Sample
from .sender import Sender

__all__ = ["DataBalance", "GBSImageDataBalance", "MicroBatches"]

# Phases by what a batch is measured in; "length" is the one of the presets that are no model.
_MEASURES = {"vision": "vision", "audio": "audio", "llm": "llm", "length": "llm"}

# Seconds: what was read last, often the end of the data, is sent in milliseconds unless the group stands still.
_LAST_WORDS = 1.0

_noticed: set[str] = set()
_names = itertools.count(1)  # balancers of this process


def _name() -> str:
    """A group's name that no other balancer of this process has. Ranks that make theirs in the same order agree."""
    number = next(_names)
    return "data_balance" if number == 1 else f"data_balance.{number}"


class DataBalance:
    """Balances the collated batches of a loader over the data-parallel ranks.

    Args:
        virtual_pipeline_model_parallel_size: not None (or 0): build_balanced_train_data_iterator() returns a list of
            `len_model` independent iterators over the same micro-batches.
        model_config_path: the model's configuration: a path to its JSON, a mapping or an object. Its `image_encoder`,
            `audio_encoder` and `text_decoder` give the cost (see poise.model_config). None: `cost` must be given.
        sorting_algo_name: the planner's algorithm; None: "least_move". The old names mean "least_move" with equal
            counts, too; "reference:NAME" is the old algorithm, exactly.
        len_model: model chunks of this process.
        train_data_iterator: gives one dict a step, the samples of all of this rank's micro-batches. Of a list (one a
            model chunk) the first is read.

    Keywords for what cannot be known from a batch, the same on every rank:
        cost: a preset's name or a list of poise.Phase instead of the configuration's. passes: {"vision": 1, ...}
            instead of what its freeze and recompute flags say.
        lengths: function of the batch: {phase: [samples] lengths}, instead of counted tokens and patches.
        pad_values: {key: value}; padding_side: "right" or "left"; pad_multiple, pad_to: what the loader rounds the
            width up to, or makes it; pad_scope: "micro_batch", or "step" to pad all ranks' micro-batches of a step
            alike.
        batch_key: (samples, tokens), what the batch's size is taken from. batch_axis: {key: axis} where samples are not
            along the first one, nor (3, samples, tokens) as in position_ids.
        fields: {key: "text", "sample", "image", "video" or "audio"}: what a key is one row of.
        images_per_sample, videos_per_sample, audios_per_sample: a number, a key of the batch or a function of the
            batch; None: as the tokens image_token_id, video_token_id and audio_token_id mark them, one for merge_size^2
            patches (all None: the configuration's).
        constants: keys whose value is the same on all ranks and in all steps, which is checked.
        recompute: {key: function of the balanced dict} for what the loader makes of its local batch.
        ignore_index, shift_labels, loss_tokens: loss tokens of a sample are the labels that are not ignore_index, the
            first one aside if shift_labels; loss_tokens: a function of the batch instead.
        pairwise: the batch is n chosen rows and then n rejected; micro_batch_size counts pairs.
        absent: what a micro-batch without an image (video, audio) has under its keys: "rows", zero rows; "omit",
            nothing; "none", None.
        with_weights: adds poise_weight_step, poise_weight_arrival, poise_loss_tokens and poise_totals to each dict.
        lookahead: steps that are read ahead of the one that is asked for; 0: none.
        job, group, rank, n_ranks, replica, n_replicas, process_group, mesh, mesh_dim, and every option by its C name:
            as poise.Group has them.

    Attributes:
        image_encoder_dp: data-parallel ranks of the image encoder.
        step: the step that the next call builds.
    """

    def __init__(self, virtual_pipeline_model_parallel_size: int | None, model_config_path: Any,
                 sorting_algo_name: str | None, len_model: int, train_data_iterator: Any, *,
                 cost: str | Sequence[Phase] | None = None, passes: Mapping[str, float] | None = None,
                 batch_key: str = "input_ids", padding_side: str = "right",
                 pad_values: Mapping[str, float] | None = None, pad_multiple: int = 1, pad_to: int = 0,
                 pad_scope: str = "micro_batch", batch_axis: Mapping[str, int] | None = None,
                 fields: Mapping[str, str] | None = None, images_per_sample: PerSample = None,
                 videos_per_sample: PerSample = None, audios_per_sample: PerSample = None,
                 image_token_id: int | None = None, video_token_id: int | None = None,
                 audio_token_id: int | None = None, merge_size: int | None = None, constants: Sequence[str] = (),
                 recompute: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None, ignore_index: int = -100,
                 shift_labels: bool = True, lengths: Callable[..., Any] | None = None,
                 loss_tokens: Callable[..., Any] | None = None, pairwise: bool = False, absent: str = "rows",
                 with_weights: bool = False, lookahead: int = 1, hetero_parallel: bool | None = None,
                 process_group: Any = None, mesh: Any = None, mesh_dim: Any = None, rank: int | None = None,
                 n_ranks: int | None = None, replica: int | None = None, n_replicas: int | None = None,
                 **options: Any) -> None:
        if model_config_path is None and cost is None:
            raise InvalidInput("model_config_path is None: the model's configuration is wanted, or cost=")
        model = model_cost(model_config_path, passes) if model_config_path is not None else ModelCost([])
        model.image_token_id = model.image_token_id if image_token_id is None else image_token_id
        model.video_token_id = model.video_token_id if video_token_id is None else video_token_id
        model.audio_token_id = model.audio_token_id if audio_token_id is None else audio_token_id
        self._cost: str | list[Phase] = cost if isinstance(cost, str) else list(cost or _phases(model))
        self._phase_names = [phase.name for phase in phases_of(self._cost)]
        unknown = [name for name in self._phase_names if name not in _MEASURES]
        if unknown and lengths is None:
            raise InvalidInput(f"phase {unknown[0]} of cost= is not measured ({', '.join(_MEASURES)} are): "
                               "pass lengths=")
        self._collated = Collated(Layout(
            batch_key=batch_key, padding_side=padding_side, pad_values=pad_values or {}, pad_multiple=pad_multiple,
            pad_to=pad_to, pad_scope=pad_scope, batch_axis=batch_axis or {}, fields=fields or {},
            constants=tuple(constants), recompute=recompute or {}, lengths=lengths, loss_tokens=loss_tokens,
            per_sample={IMAGE: images_per_sample, VIDEO: videos_per_sample, AUDIO: audios_per_sample},
            token_id={IMAGE: model.image_token_id, VIDEO: model.video_token_id, AUDIO: model.audio_token_id},
            merge_size=merge_size or model.merge_size, audio_window=model.audio_window, ignore_index=ignore_index,
            shift_labels=shift_labels, absent=absent))
        self._where = ranks.find(
            rank, n_ranks, replica, n_replicas, process_group=process_group, mesh=mesh, mesh_dim=mesh_dim
        )
        self._options = {"group": _name()} | options | _algorithm(sorting_algo_name, options) | _pipeline(options)
        self._is_reference = self._options["algorithm"] in OLD_ALGORITHMS
        self._keeps_count = not self._is_reference and self._options.get("count", "equal") in ("equal", 0)
        self._n_iterators = len_model if virtual_pipeline_model_parallel_size else 1
        self._is_list = bool(virtual_pipeline_model_parallel_size)
        if self._n_iterators < 1:
            raise InvalidInput(f"len_model is {len_model}: at least 1 model chunk is wanted")
        self._source = _source(train_data_iterator, self._is_list)
        self._unit = 2 if pairwise else 1  # samples that move as one
        self._with_weights, self._lookahead = with_weights, lookahead
        self.image_encoder_dp = self._encoder_ranks(model, hetero_parallel)
        if self.image_encoder_dp <= 1:
            warnings.warn(
                "the image encoder has one data-parallel rank: balancing has no effect and only costs time. Leave out "
                "--use-data-balance",
                UserWarning,
                stacklevel=2,
            )
        self.step = int(options.get("first_step") or 0)
        self._submitted = self.step  # the next step to be read from the loader
        self._has_ended = False  # this rank's loader
        self._is_over = False  # the group's data
        self._group: Group | None = None
        self._cut = Cut(0, 0, 0)  # that the group was opened with
        self._current: list[MicroBatches] = []
        self._sender = Sender()
        self._is_checked = False
        self._n_read = 0  # samples; a sample's number is its tag
        self._declared: set[str] = set()
        self._loader_errors: dict[int, Exception] = {}
        self._frames: dict[int, Frame] = {}  # by step

    def _encoder_ranks(self, model: ModelCost, hetero_parallel: bool | None) -> int:
        """As the old system counts them: with --hetero-parallel the encoder has model-parallel sizes of its own."""
        if hetero_parallel is None:
            module = sys.modules.get("megatron.training.global_vars") or sys.modules.get("megatron.global_vars")
            hetero_parallel = bool(getattr(getattr(module, "_GLOBAL_ARGS", None), "hetero_parallel", False))
        if hetero_parallel:
            return self._where.n_ranks * self._where.n_replicas // model.encoder_ranks
        return self._where.n_ranks

    # ----------------------------------------------------------------------------------------------------------- a step

    def build_balanced_train_data_iterator(
        self,
        is_vit_last_stage: bool = False,
        max_batch_capacity: int | None = None,
        micro_batch_size: int | None = None,
        num_microbatches: int | None = None,
        data_type: str = "image",
    ) -> MicroBatches | list[MicroBatches]:
        """The next step's micro-batches: an iterator of dicts, or a list of `len_model` such iterators.

        Args:
            is_vit_last_stage: not used: what a pipeline stage does not need, it need not read.
            max_batch_capacity: of the old algorithms only; None: micro_batch_size.
            micro_batch_size, num_microbatches: samples in a micro-batch, and how many the trainer reads. A step that
                was read ahead for other numbers is cut anew; then the group is opened again for the new ones.
            data_type: not used: a batch's keys say what it holds.

        Raises: StopIteration at the end of the data; StepError, the same on all ranks, for a step that is bad on any of
        them; on the rank whose loader raised, what it raised.
        """
        capacity = max_batch_capacity if self._is_reference else None
        cut = Cut(micro_batch_size or 0, num_microbatches or 0, capacity or micro_batch_size or 0)
        for name, value in zip(("micro_batch_size", "num_microbatches", "max_batch_capacity"), cut):
            if value < 0:
                raise InvalidInput(f"{name} is {value}: a positive number is wanted")
        self._finish()
        if self._is_over:
            raise StopIteration
        if self._group is None or cut != self._cut and self._submitted == self.step:
            self._open(cut)
        self._read_until(self.step)
        reading = Reading(
            self._frame_of, self._next, self._where.n_ranks, self._keeps_count, self._unit, self._with_weights
        )
        current = [MicroBatches(reading, self.step, i, cut, self._must_cut(cut)) for i in range(self._n_iterators)]
        try:
            current[0].start()
        except StepError as error:
            self.step += 1
            for iterator in current[1:]:  # they take the error, too, or what there is of the step
                with contextlib.suppress(StepError):
                    iterator.close()
            raise self._loader_errors.pop(self.step - 1, None) or error
        except EndOfData:
            self._is_over = True
            raise StopIteration from None
        self.step += 1
        self._current = current
        if cut == self._cut:
            self._read_until(self.step - 1 + self._lookahead)
        return current if self._is_list else current[0]

    def _finish(self) -> None:
        """What the trainer left unread of the step before goes back, on all iterators."""
        current, self._current = self._current, []
        for iterator in current:
            iterator.close()
        for step in [step for step in self._frames if step < self.step]:
            del self._frames[step]

    def _frame_of(self, step: int) -> Frame:
        """How this rank's dicts of a step are made; behind the end of its own data as those before."""
        return self._frames.get(step, self._collated.frame)

    def _open(self, cut: Cut) -> None:
        """Joins the group, again if the trainer asks for other micro-batches: all ranks do at the same step."""
        if self._group is not None:
            self._sender.drain()
            self._group.close()
            self._group = None
        options = self._options | {"first_step": self.step, "n_iterators": self._n_iterators} | self._micro_batches(cut)
        if self._is_reference:
            options.setdefault("image_encoder_dp", self.image_encoder_dp)
        options.setdefault("prefetch_depth", max(2, self._lookahead))
        self._group = Group(
            rank=self._where.rank,
            n_ranks=self._where.n_ranks,
            replica=self._where.replica,
            n_replicas=self._where.n_replicas,
            cost=self._cost,
            **options,
        )
        self._cut = cut
        self._declared = set()
        if self._has_ended:
            self._group.end(self.step)

    def _micro_batches(self, cut: Cut) -> dict[str, Any]:
        """What the planner is told: the size, and as many as that makes, since a last step may have fewer samples (and
        one of another size may have been read ahead). Where ranks do not keep their number of samples, how many there
        are."""
        if self._is_reference:
            return {"micro_batch_size": cut.capacity * self._unit}
        if self._keeps_count and cut.size or not cut.number:
            return {"micro_batch_size": cut.size * self._unit}
        return {"n_micro_batches": cut.number, "cut": self._options.get("cut", "by_cost")}

    def _must_cut(self, cut: Cut) -> bool:
        """True if the micro-batches that come from the group are not those that `cut` asks for."""
        return cut[:2] != self._cut[:2] or self._is_reference and cut.capacity != cut.size

    def _next(self, index: int) -> Batch:
        """The next micro-batch of an iterator, or the error of its step."""
        if self._group is None:
            raise InvalidInput("the data balance is closed")
        try:
            return self._group.next(index)
        except StepError as error:
            raise self._explained(error) from None
        except Interrupted:
            if self._sender.error is None:
                raise
        raise self._sender.error

    def _explained(self, error: StepError) -> StepError:
        """Says what a difference between two ranks' marks means."""
        if error.field.startswith(CONSTANT):
            key = error.field[len(CONSTANT) :]
            text = f"{key} is declared constant, but its values on two ranks differ: give recompute= for it"
        elif error.field == KEYS:
            text = (
                "the loaders of two ranks give their samples different keys; this rank's are "
                f"{', '.join(self._collated.sample_keys) or 'not known yet'}"
            )
        else:
            return error
        return StepError(f"{text} ({error.text})", error.code, error.rank, error.sample, error.step, error.field)

    # ------------------------------------------------------------------------------------------------------- submitting

    def _read_until(self, step: int) -> None:
        """Reads the loader, in this thread, until `step` is with the sender."""
        while self._submitted <= step and not self._has_ended:
            self._read_one()
        self._submitted = max(self._submitted, step + 1)  # behind the end: as the other ranks count

    def _read_one(self) -> None:
        group, step = self._group, self._submitted
        assert group is not None
        try:
            batch = next(self._source)
        except StopIteration:
            self._has_ended = True
            work = lambda: group.end(step)  # noqa: E731
        except Exception as error:
            self._loader_errors[step] = error
            reason = f"the loader of rank {group.rank} raised {type(error).__name__}: {error}"
            work = lambda: group.fail(step, reason)  # noqa: E731
        else:
            work = lambda: self._send(group, step, batch)  # noqa: E731
        self._submitted += 1
        self._sender.put(lambda: self._quietly(work), group.interrupt)

    @staticmethod
    def _quietly(work: Callable[[], None]) -> None:
        """The group's end is told by next(), and only after what was delivered before it."""
        with contextlib.suppress(EndOfData, Aborted):
            work()

    def _send(self, group: Group, step: int, batch: Mapping[str, Any]) -> None:
        """Cuts a batch and submits it, or makes the step bad on all ranks."""
        try:
            parts = self._collated.cut(batch)
            if not self._is_checked:
                check_first(batch, parts)
                self._is_checked = True
            new = [field for field in self._collated.declared() if field.name not in self._declared]
            group.declare(new)
            self._declared.update(field.name for field in new)
            samples = self._samples(parts)
            self._frames[step] = parts.frame
        except Exception as error:
            if isinstance(error, PoiseError) and not isinstance(error, InvalidInput):
                raise
            text = str(error) if isinstance(error, PoiseError) else f"{type(error).__name__}: {error}"
            group.fail(step, f"rank {group.rank}: {text}")
        else:
            group.submit_or_fail(step, samples)

    def _samples(self, parts: Parts) -> list[Sample]:
        names = [_MEASURES.get(name, name) for name in self._phase_names]
        missing = [name for name in names if name not in parts.units]
        if missing:
            raise InvalidInput(f"lengths= does not say any of phase {missing[0]}")
        if parts.n % self._unit:
            raise InvalidInput(f"pairwise: {parts.n} rows are no pairs")
        half = parts.n // self._unit
        samples = []
        for i, values in enumerate(parts.values):
            sample = Sample(
                values,
                tuple(parts.units[name][i] for name in names),
                tuple(parts.attention[name][i] for name in names),
                parts.loss_tokens[i],
                self._n_read + i,
            )
            if self._unit > 1:
                sample.unit, sample.unit_layout = i % half + 1, "transposed"
                sample.micro_batch = self._arrival(i % half, half)
            elif not self._keeps_count and self._cut.size and self._cut.number:
                sample.micro_batch = min(self._arrival(i, parts.n), self._cut.number - 1)
            samples.append(sample)
        self._n_read += parts.n
        return samples

    def _arrival(self, unit: int, n_units: int) -> int:
        """The micro-batch that a sample (or pair) would have been in."""
        return unit // (self._cut.size or max(1, -(-n_units // max(1, self._cut.number))))

    # -------------------------------------------------------------------------------------------------------------- end

    @property
    def group(self) -> Group | None:
        """The group, for stats() and notices; None before the first step."""
        return self._group

    def close(self, wait: bool = True) -> None:
        """Leaves the group: serves the other ranks until they have what this one sent; not at all with wait=False.
        Batches that are held stay valid."""
        if wait:
            self._sender.drain(_LAST_WORDS)
        self._sender.stop()
        group, self._group = self._group, None
        self._is_over = True
        if group is not None:
            group.close(wait)

    def __enter__(self) -> DataBalance:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # A rank that fails must not serve others for half a minute that wait for it elsewhere.
        self.close(wait=kind is None)


GBSImageDataBalance = DataBalance  # its name there since 2025


def _phases(model: ModelCost) -> list[Phase]:
    return [Phase(phase.name, phase.linear, phase.quadratic, passes=phase.passes) for phase in model.phases]


def _source(given: Any, is_list: bool) -> Any:
    """What next() is called on. A list of iterators, one a model chunk, is all over the same data."""
    source = given[0] if is_list and isinstance(given, (list, tuple)) else given
    if source is None:
        raise InvalidInput(
            "train_data_iterator is None in this process: every process of a data-parallel rank must read the data "
            "(is_distributed of Megatron's dataset provider)"
        )
    return source if hasattr(source, "__next__") else iter(source)


def _algorithm(name: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The planner's algorithm and count for what the trainer's arguments say."""
    if name is None:
        return {"algorithm": DEFAULT_ALGORITHM}
    if name.startswith(REFERENCE):
        name = name[len(REFERENCE) :]
        if name not in OLD_ALGORITHMS:
            raise InvalidInput(f"{REFERENCE}{name}: {', '.join(OLD_ALGORITHMS)} are the old algorithms")
        return {"algorithm": name}
    if name in OLD_ALGORITHMS:
        if name not in _noticed:
            _noticed.add(name)
            warnings.warn(
                f"{name} slows runs down: {DEFAULT_ALGORITHM} with equal counts is used instead. To have the old "
                f"algorithm, ask for {REFERENCE}{name}",
                PoiseWarning,
                stacklevel=3,
            )
        return {"algorithm": DEFAULT_ALGORITHM, "count": options.get("count", "equal")}
    return {"algorithm": name}


def _pipeline(options: Mapping[str, Any]) -> dict[str, Any]:
    """With pipeline parallelism a step takes its sum and, once more for each further stage, its largest micro-batch."""
    mpu = ranks._megatron_state()
    stages = getattr(mpu, "get_pipeline_model_parallel_world_size", lambda: 1)() if mpu else 1
    if stages <= 1 or "objective" in options:
        return {}
    return {"objective": "pipeline", "stages": stages}
