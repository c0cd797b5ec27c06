"""Faults that others' suites, code and reports have found.  Each is planted again: one fix is taken out whole.

Where `attack` is False, no program that is drawn meets the fault.
"""

from __future__ import annotations

from tests.attack.plant import Plant

_OWN_SAMPLERS = "tests/resume/test_resume_own_samplers.py"
_RAISING = "tests/resume/test_resume_streams_that_raise.py"
_ORDERS = "tests/resume/test_resume_order.py"
_FETCHERS = "tests/face/test_replaced_fetchers.py"
_ITERATORS = "tests/face/test_replaced_iterators.py"
_EXCEPTIONS = "tests/worker/test_exceptions.py"
_DEFAULTS = "tests/images/test_images_defaults.py"

_OF_OWN_ITERATORS = (
    Plant(
        fault="an epoch of a sampler that is its own iterator and has a state never ends: its first index comes again",
        edits=(
            (
                "shmloader/resume/epoch.py",
                "which starts a sampler again that is its own iterator.\n"
                "            drawn.extend(map(next, (self._indices,)))",
                "which starts a sampler again that is its own iterator.\n"
                "            drawn.extend(itertools.islice(self._indices, 1))",
            ),
        ),
        tests=(f"{_OWN_SAMPLERS}::test_whole_epochs_are_torchs[stateful-0]",),
        attack=True,
    ),
    Plant(
        fault="a sampler that is its own iterator begins again where it is asked behind its last index",
        edits=(
            (
                "shmloader/resume/sampler_states.py",
                "import copy\nimport pickle",
                "import copy\nimport itertools\nimport pickle",
            ),
            (
                "shmloader/resume/sampler_states.py",
                "drawn.extend(map(next, (indices,)))",
                "drawn.extend(itertools.islice(indices, 1))",
            ),
        ),
        tests=(f"{_OWN_SAMPLERS}::test_the_rest_and_the_next_epoch[stateful-samples]",),
        attack=True,
    ),
    Plant(
        fault="resumed before its first batch, a sampler that is its own iterator gives its first index twice",
        edits=(
            (
                "shmloader/resume/rest_of_epoch.py",
                "itertools.chain(drawn, by_next(source))",
                "itertools.chain(drawn, source)",
            ),
        ),
        tests=(f"{_OWN_SAMPLERS}::test_the_rest_and_the_next_epoch[restarting-samples]",),
        attack=True,
    ),
    Plant(
        fault="resumed in mid-epoch, a sampler that is its own iterator begins again for torch's BatchSampler",
        edits=(
            (
                "shmloader/resume/rest_of_epoch.py",
                "return by_next(self._indices)  # because",
                "return self._indices  # because",
            ),
        ),
        tests=(f"{_OWN_SAMPLERS}::test_the_rest_and_the_next_epoch[restarting-dropped]",),
    ),
    Plant(
        fault="resumed behind an error that does not come again, a stream that is its own iterator begins again",
        edits=(
            (
                "shmloader/worker/fetch.py",
                "itertools.chain([sample], by_next(samples))",
                "itertools.chain([sample], samples)",
            ),
        ),
        tests=(f"{_RAISING}::test_an_error_that_does_not_come_again_costs_no_sample",),
        attack=True,
    ),
    Plant(
        fault="a sampler that starts over at its end is asked again behind it, and gives a second epoch at once",
        edits=(
            (
                "shmloader/resume/epoch.py",
                "        if self._states.record(number, drawn, self._indices):\n"
                "            self._indices = iter(())"
                "  # not asked again, because a sampler may start over at its end\n",
                "        self._states.record(number, drawn, self._indices)\n",
            ),
        ),
        tests=(f"{_OWN_SAMPLERS}::test_the_rest_and_the_next_epoch[begins again-samples]",),
    ),
)

_OF_FETCHERS = (
    Plant(
        fault="a fetcher that other code has put in place of torch's makes no batch in workers",
        edits=(("shmloader/worker/their_fetcher.py", "    by = replaced.fetcher(streams)\n", "    by = None\n"),),
        tests=(
            f"{_FETCHERS}::test_replaced_in_the_worker_alone",
            f"{_FETCHERS}::test_packed_batches",
            f"{_FETCHERS}::test_a_replaced_fetcher_makes_the_batches",
        ),
        attack=True,
    ),
    Plant(
        fault="options that make samples one by one have no effect, without an error, where the fetcher is replaced",
        edits=(
            ("shmloader/checks/requirements.py", "    _check_fetcher(loader, options)\n", ""),
            (
                "shmloader/worker/their_fetcher.py",
                "    if option is not None:\n        raise ValueError(replaced.refusal(option, by))\n",
                "",
            ),
        ),
        tests=(
            f"{_FETCHERS}::test_options_that_make_samples_one_by_one_are_errors",
            f"{_FETCHERS}::test_such_an_option_and_a_fetcher_of_the_worker_alone",
        ),
    ),
    Plant(
        fault="a stream that a replaced fetcher reads begins again where it should be resumed",
        edits=(
            (
                "shmloader/worker/their_fetcher.py",
                "            self._delivered = left\n",
                "            self._delivered = None\n",
            ),
        ),
        tests=(
            f"{_FETCHERS}::test_a_stream_resumes_by_batches",
            f"{_FETCHERS}::test_a_stream_that_raised_loses_no_sample",
        ),
        attack=True,
    ),
)

_OF_LOADERS = (
    Plant(
        fault="what other code has put in place of torch's __iter__ or _get_iterator is not called",
        edits=(
            (
                "shmloader/private/replaced.py",
                "return not _is_torchs(vars(torch.utils.data.DataLoader)[method], _file())",
                "return False",
            ),
        ),
        tests=(f"{_ITERATORS}::test_a_hook_is_called_and_comes_back",),
        attack=True,
    ),
    Plant(
        fault="a _get_iterator that other code has set on one loader is not called",
        edits=(
            (
                "shmloader/dataloader.py",
                '            "_get_iterator" in vars(self)\n            or type(self)._get_iterator is not',
                "            type(self)._get_iterator is not",
            ),
        ),
        tests=(
            f"{_ITERATORS}::test_a_hook_is_called_and_comes_back",
            f"{_ITERATORS}::test_a_state_counts_through_a_hook",
        ),
        attack=True,
    ),
    Plant(
        fault="the __iter__ of a user's class that comes behind ours is not called where there are workers",
        edits=(
            (
                "shmloader/dataloader.py",
                "above is not torch.utils.data.DataLoader.__iter__ or",
                "(above is not torch.utils.data.DataLoader.__iter__ and not self.num_workers) or",
            ),
        ),
        tests=(f"{_ITERATORS}::test_an_iter_of_a_class_behind_ours",),
        attack=True,
    ),
    Plant(
        fault="a hook that calls torch's own _get_iterator gets torch's iterator, so the loader does not ride",
        edits=(
            (
                "shmloader/private/replaced.py",
                "    of_torch.make_iterators_by(functools.partial(_make, ours))\n",
                "    return\n",
            ),
        ),
        tests=(
            f"{_ITERATORS}::test_a_hook_is_called_and_comes_back",
            f"{_ITERATORS}::test_a_state_counts_through_a_hook",
        ),
        attack=True,
    ),
)

_OF_ITERATORS = (
    Plant(
        fault="what other code has put in place of methods of torch's iterators has no effect, without a word",
        edits=(
            (
                "shmloader/checks/requirements.py",
                "why_never(type(loader)) or replaced.iterators()",
                "why_never(type(loader))",
            ),
        ),
        tests=(f"{_ITERATORS}::test_torchs_iterator_serves",),
        attack=True,
    ),
    Plant(
        fault="a partial, or another callable without code, in place of a method of torch's has no effect",
        edits=(
            (
                "shmloader/private/replaced.py",
                "(type(found) is types.FunctionType and found.__code__.co_filename == file)\n\n\ndef _where",
                '(not hasattr(found, "__code__") or found.__code__.co_filename == file)\n\n\ndef _where',
            ),
        ),
        tests=(f"{_ITERATORS}::test_other_forms_of_that",),
        attack=True,
    ),
    Plant(
        fault="a wrapper that copies __module__, as functools.wraps() does, is taken for torch's own function",
        edits=(
            (
                "shmloader/private/replaced.py",
                "(type(found) is types.FunctionType and found.__code__.co_filename == file)\n\n\ndef _where",
                'str(getattr(found, "__module__", "")).startswith("torch.")\n\n\ndef _where',
            ),
        ),
        tests=(f"{_ITERATORS}::test_torchs_iterator_serves",),
        attack=True,
    ),
    Plant(
        fault="our own watch over torch's iterators is taken for other code, so no loader rides",
        edits=(
            (
                "shmloader/private/replaced.py",
                "of_torch.before_watch(each, vars(each).get(method))",
                "vars(each).get(method)",
            ),
        ),
        tests=(f"{_ITERATORS}::test_our_own_watch_is_looked_through",),
        attack=True,
    ),
    Plant(
        fault="the variable by which a user says that what was replaced does not concern his loaders has no effect",
        edits=(
            (
                "shmloader/private/replaced.py",
                'ignored = {name.strip() for name in os.environ.get(IGNORE, "").split(",")}',
                "ignored: set[str] = set()",
            ),
        ),
        tests=(f"{_ITERATORS}::test_the_variable_says_that_it_does_not_matter",),
    ),
    Plant(
        fault="patch_torch() advises classes=[...] for a class that torch's iterator serves all the same",
        edits=(("shmloader/patch.py", "    if why := replaced.iterators():\n", '    if why := "":\n'),),
        tests=(f"{_ITERATORS}::test_the_patch_names_what_lets_such_a_loader_ride",),
    ),
)

_OF_USED_UP = (
    Plant(
        fault="after the state of a used-up sampler, saved between two epochs, the next epoch is empty",
        edits=(
            (
                "shmloader/resume/place.py",
                "return Another(sampler_of(self.loader), epoch) if may_be_at_end else None",
                "return None",
            ),
        ),
        tests=(
            f"{_OWN_SAMPLERS}::test_the_rest_and_the_next_epoch[yielded-samples]",
            f"{_OWN_SAMPLERS}::test_persistent_workers_have_saved_it",
        ),
        attack=True,
    ),
    Plant(
        fault="an epoch is empty without a word where a used-up sampler gives nothing in two attempts",
        edits=(("shmloader/resume/samplers.py", "        if drawn or self.iterator is None:\n", "        if True:\n"),),
        tests=(f"{_OWN_SAMPLERS}::test_a_sampler_that_stays_at_its_end",),
    ),
)

_OF_STREAMS = (
    Plant(
        fault="without workers, the epochs after a resumed one begin at the loaded place, of a stream with set_epoch()",
        edits=(
            (
                "shmloader/trainer/without_workers.py",
                "from shmloader.resume.dataset_epochs import follow, set_epoch_again",
                "from shmloader.resume.dataset_epochs import dataset_epoch, follow, set_epoch_again",
            ),
            (
                "shmloader/trainer/without_workers.py",
                "and place.current.fresh is not None:",
                "and place.current.fresh is not None and dataset_epoch(loader.dataset) is None:",
            ),
        ),
        tests=("tests/resume/test_resume_streams.py::test_what_follows_each_place[HersToldOnce-0-{}]",),
        attack=True,
    ),
    Plant(
        fault="without workers, a stream's epochs after a resumed one have the number of its state, not set_epoch()'s",
        edits=(
            (
                "shmloader/trainer/without_workers.py",
                "        set_epoch_again(loader.dataset)  # because the state may have another epoch\n",
                "",
            ),
        ),
        tests=("tests/resume/test_resume_streams.py::test_what_follows_each_place[TakesEpoch-0-{}]",),
        attack=True,
    ),
    Plant(
        fault="a stream that raised once gives a sample twice after a resume, without a word",
        edits=(("shmloader/worker/fetch.py", "    if missing:\n        _warn_of_missing(dataset, missing)\n", ""),),
        tests=(f"{_RAISING}::test_an_error_before_the_place_that_does_not_come_again_is_a_warning",),
        attack=True,
    ),
)

_OF_SAMPLERS = (
    Plant(
        fault="a DistributedSampler with another seed takes a state in mid-epoch, so samples come twice or never",
        edits=(("shmloader/resume/order.py", " and (not samples or order == order_now))", ")"),),
        tests=(f"{_ORDERS}::test_other_arguments_of_a_distributed_sampler_are_refused_in_mid_epoch",),
        attack=True,
    ),
    Plant(
        fault="a state past the end of a shorter dataset gives an empty epoch without a word",
        edits=(("shmloader/resume/place.py", "why_past_end(samplers, state) or why_doubtful(", "why_doubtful("),),
        tests=(f"{_ORDERS}::test_a_place_past_the_end_of_a_shorter_dataset_is_one_warning",),
        attack=True,
    ),
    Plant(
        fault="set_epoch() does not reach a sampler that is wrapped under another name, without a word",
        edits=(
            (
                "shmloader/resume/place.py",
                "        if self._current_set is not None:\n"
                "            warn_of_unreached(loader, self._current_set, number)\n",
                "",
            ),
        ),
        tests=("tests/resume/test_resume_epochs.py::test_a_sampler_under_another_name_is_warned_of_once",),
        attack=True,
    ),
)

_OF_DATASETS = (
    Plant(
        fault="drop_last drops all of an epoch, or of each worker's part, without a word",
        edits=(
            (
                "shmloader/trainer/schedule.py",
                "    if loader is None or not isinstance(epoch, Epoch) or loader in _warned:\n",
                "    if True:\n",
            ),
        ),
        tests=(
            "tests/trainer/test_epoch_books.py::test_a_dataset_is_smaller_than_a_batch",
            "tests/trainer/test_epoch_books.py::test_each_worker_drops_its_only_batch",
        ),
        attack=True,
    ),
    Plant(
        fault="a dataset's own __getitem__ is bypassed by the __getitems__ of a class above it, without a word",
        edits=(("shmloader/iterators.py", "    warn_if_bypassed(loader)\n", ""),),
        tests=("tests/face/test_bypassed.py::test_a_bypassed_getitem_is_named_once",),
    ),
    Plant(
        fault="workers are forked while the dataset holds an open file, without a word",
        edits=(
            (
                "shmloader/trainer/before_workers.py",
                '    if has_init or getattr(context, "get_start_method", str)() != "fork":\n',
                "    if True:\n",
            ),
        ),
        tests=(
            "tests/trainer/test_open_files.py::test_a_loader_warns_where_it_is_iterated",
            "tests/trainer/test_open_files.py::test_an_open_file_is_named_until_it_is_closed",
        ),
    ),
    Plant(
        fault="the text of an exception that cannot be built again is lost: of a TaskGroup, of a class with a message",
        edits=(
            (
                "shmloader/batch/exceptions.py",
                "        raise _of_text(wrapped, kind)\n    try:\n",
                "        raise _of_text(wrapped, kind)\n    wrapped.reraise()\n    try:\n",
            ),
        ),
        tests=(
            f"{_EXCEPTIONS}::test_an_exception_that_cannot_be_made_again_is_a_runtime_error_with_its_text",
            f"{_EXCEPTIONS}::test_an_exception_that_does_not_show_its_text_has_it_as_its_cause",
        ),
        attack=True,
    ),
    Plant(
        fault="under spawn and forkserver a dataset that holds a torch.Generator kills its workers",
        edits=(
            (
                "shmloader/system/spawn_arguments.py",
                "                self.pickler.dump(value)\n",
                "                self.pickler.dump(value)\n            self.pickler = None\n",
            ),
        ),
        tests=("tests/trainer/test_many_tensors.py::test_workers_of_the_fork_server_have_it",),
        attack=True,
    ),
)

_OF_PICTURES = (
    Plant(
        fault="images.decode raises under torch.set_default_device()",
        edits=(
            (
                "shmloader/images/decode.py",
                'torch.empty((3, height, width), dtype=torch.uint8, device="cpu")',
                "torch.empty((3, height, width), dtype=torch.uint8)",
            ),
        ),
        tests=(
            f"{_DEFAULTS}::test_decode_gives_a_tensor_on_the_cpu",
            "tests/project/test_factories.py::test_each_factory_in_the_source_has_a_dtype_and_a_device",
        ),
    ),
    Plant(
        fault="images.fuse and images.ImageFolder raise under torch.set_default_device()",
        edits=(
            (
                "shmloader/images/reader.py",
                'torch.empty((*shape[1:], shape[0]), dtype=finish.dtype, device="cpu")',
                "torch.empty((*shape[1:], shape[0]), dtype=finish.dtype)",
            ),
            (
                "shmloader/images/reader.py",
                'torch.empty(shape, dtype=finish.dtype, device="cpu")',
                "torch.empty(shape, dtype=finish.dtype)",
            ),
            (
                "shmloader/images/random_numbers.py",
                'torch.empty(1, dtype=self.dtype, device="cpu")',
                "torch.empty(1)",
            ),
            (
                "shmloader/images/random_numbers.py",
                'torch.empty(1, dtype=torch.int64, device="cpu")',
                "torch.empty(1, dtype=torch.int64)",
            ),
        ),
        tests=(
            f"{_DEFAULTS}::test_samples_do_not_depend_on_the_default_device[ImageFolder, training-meta]",
            f"{_DEFAULTS}::test_samples_do_not_depend_on_the_default_device[fuse, training-meta]",
            "tests/project/test_factories.py::test_each_factory_in_the_source_has_a_dtype_and_a_device",
        ),
    ),
    Plant(
        fault="normalize_on_device() computes in the default dtype, with bfloat16 0.03 beside the right numbers",
        edits=(
            (
                "shmloader/transforms.py",
                'torch.tensor(values, dtype=torch.float32, device="cpu")',
                "torch.tensor(values)",
            ),
        ),
        tests=(f"{_DEFAULTS}::test_normalised_numbers_are_float32s_for_any_default_dtype[torch.bfloat16]",),
    ),
)

_OF_PROJECT = (
    Plant(
        fault="the table of workers counts ends of streams as batches, so a worker that gave nothing looks busy",
        edits=(
            (
                "cython_ext/ring/worker.pyx",
                "self.lane.published(outcome == FILLED or outcome == KEPT)",
                "self.lane.published(True)",
            ),
        ),
        tests=(
            "tests/statistics/test_report_streams.py::test_an_onlooker_does_not_count_the_end_of_a_stream",
            "tests/statistics/test_report_streams.py::test_the_end_of_a_stream_is_no_batch",
        ),
    ),
    Plant(
        fault="the report does not name a worker that gave nothing in a whole epoch",
        edits=(("shmloader/measured.py", "            without_batch=place_of(self).without_batch(),\n", ""),),
        tests=("tests/statistics/test_report_streams.py::test_a_worker_stays_named_in_the_next_epoch",),
    ),
    Plant(
        fault="make wheel fails at once, because a pin in constraints.txt was split in two",
        edits=(("constraints.txt", "auditwheel==6.8.2\n", "auditwebdataset==1.0.2\nwheel==6.8.2\n"),),
        tests=("tests/project/test_pins.py",),
    ),
    Plant(
        fault="make release-check does not repeat at its end what a step has not tried",
        edits=(("wheels/release.py", '        untried += [line for line in lines if "not tried" in line]\n', ""),),
        tests=("tests/project/test_release.py::test_a_release_check_ends_with_all_that_was_not_tried",),
    ),
)

PLANTS: tuple[Plant, ...] = (
    *_OF_OWN_ITERATORS,
    *_OF_FETCHERS,
    *_OF_LOADERS,
    *_OF_ITERATORS,
    *_OF_USED_UP,
    *_OF_STREAMS,
    *_OF_SAMPLERS,
    *_OF_DATASETS,
    *_OF_PICTURES,
    *_OF_PROJECT,
)
