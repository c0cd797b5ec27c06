"""Faults that public reports pointed to.  Each is planted again: one fix is taken out whole."""

from __future__ import annotations

from tests.attack.plant import Plant

NUMBERED = "tests/worker/test_numbered_copy.py::"
VIEWS = "tests/batch/test_views.py::"
DECODE = "tests/images/test_images_decode.py::"
ASKED = "tests/resume/test_resume_asked_samplers.py::"
SANDBOXES = "tests/system/test_sandboxes.py::"
REFUSED = f"{SANDBOXES}test_a_refused_system_call"
IDENTITY = "tests/face/test_only_identity.py::"

OF_DATASETS = (
    Plant(
        fault="a fresh worker calls set_epoch() again, although the trainer's call is in its copy",
        edits=(
            ("shmloader/worker/numbered_copy.py", "self._numbers = dict(enumerate(numbers()))", "self._numbers = {}"),
        ),
        tests=(
            f"{NUMBERED}test_an_attribute_that_is_set_after_the_call_is_kept",
            f"{NUMBERED}test_a_copy_has_what_the_trainers_dataset_has",
        ),
        attack=True,
    ),
    Plant(
        fault="a worker that is spawned, or comes from a fork server, calls set_epoch() again",
        edits=(
            (
                "shmloader/resume/dataset_epochs.py",
                "return functools.partial, (list, self())",
                "return Numbers, (self._dataset,)",
            ),
        ),
        tests=(f"{NUMBERED}test_a_fork_server_passes_the_number_on",),
        attack=True,
    ),
    Plant(
        fault="a dataset that seeds in set_epoch() makes all workers that persist draw the same augmentation",
        edits=(
            (
                "shmloader/worker/random_states.py",
                "    with untouched():\n        _seed(seed)\n        yield",
                "    _seed(seed)\n    yield",
            ),
        ),
        tests=(f"{NUMBERED}test_workers_of_a_dataset_that_seeds_draw_what_torchs_draw",),
        attack=True,
    ),
    Plant(
        fault="copies that shuffle in set_epoch() shuffle in different ways, so samples are lost and come twice",
        edits=(
            (
                "shmloader/worker/random_states.py",
                "    with untouched():\n        _seed(seed)\n        yield",
                "    with untouched():\n        yield",
            ),
        ),
        tests=(f"{NUMBERED}test_copies_that_shuffle_agree",),
        attack=True,
    ),
    Plant(
        fault="a sampler that calls the dataset's set_epoch() in its __iter__ has an effect one epoch late",
        edits=(("shmloader/resume/dataset_epochs.py", "    if not hearers(dataset):", "    if True:"),),
        tests=(f"{NUMBERED}test_a_sampler_calls_it", f"{NUMBERED}test_a_sampler_calls_it_in_mid_epoch"),
        attack=True,
    ),
    Plant(
        fault="workers do not follow a number that is new within an epoch, nor that of a dead worker's tasks",
        edits=(
            (
                "shmloader/worker/loop.py",
                "        if (number := ring.dataset_epoch) is not None and number != self._copy.number:\n"
                "            self._follow(number)\n",
                "",
            ),
        ),
        tests=(
            f"{NUMBERED}test_a_sampler_calls_it_in_mid_epoch",
            f"{NUMBERED}test_a_worker_that_replaces_a_dead_one_gets_its_tasks_number",
        ),
        attack=True,
    ),
    Plant(
        fault="workers that persist call set_epoch() in each epoch, although the trainer has called it once for all",
        edits=(
            (
                "shmloader/worker/loop.py",
                "            if loads:\n                self._copy.forget()\n            if number is not None and",
                "            if loads or self._epoch is not None:\n                self._copy.forget()\n"
                "            if number is not None and",
            ),
        ),
        tests=(f"{NUMBERED}test_a_copy_has_what_the_trainers_dataset_has",),
        attack=True,
    ),
    Plant(
        fault="a stream that was resumed is not told its epoch again, although its state has changed it",
        edits=(
            (
                "shmloader/worker/numbered_copy.py",
                "        self._numbers.clear()\n        self.number = None\n",
                "        return\n",
            ),
        ),
        tests=(f"{NUMBERED}test_a_state_in_a_copy_makes_its_number_unknown",),
        attack=True,
    ),
)

OF_BATCHES = (
    Plant(
        fault="a mask that is expanded in collate, windows and other views are written out in full, each apart",
        edits=(("cython_ext/batch/layout.pxi", "found = blocks_of(tensors, of)", "found = None"),),
        tests=(f"{VIEWS}test_they_take_their_memory_once", f"{VIEWS}test_writes_do_what_they_do_with_torch"),
        attack=True,
    ),
    Plant(
        fault="in a batch that is copied because its slots are kept, views no longer share memory, and take it in full",
        edits=(
            (
                "cython_ext/batch/recipe.pxi",
                "    if shared or not recipe.in_order:   # leaves that were stacked may only lie in another order\n"
                "        recipe.find_storages()\n",
                "",
            ),
        ),
        tests=(f"{VIEWS}test_they_take_their_memory_once", f"{VIEWS}test_writes_do_what_they_do_with_torch"),
        attack=True,
    ),
    Plant(
        fault="views in objects that are pickled, and Parameters over one memory, are written out in full",
        edits=(
            (
                "shmloader/batch/objects.py",
                "    elements = elements.resolve_conj().resolve_neg()\n",
                "    elements = elements.resolve_conj().resolve_neg().contiguous()\n",
            ),
        ),
        tests=(f"{VIEWS}test_they_take_their_memory_once", f"{VIEWS}test_pickled_and_plain_ones"),
    ),
    Plant(
        fault="views are copied to a device in full, each apart",
        edits=(("shmloader/device/views.py", '    if sys.platform != "linux":', "    if True:"),),
        tests=("tests/device/test_device.py::test_views_are_copied_as_one_block",),
    ),
    Plant(
        fault="labels that a loop keeps hold their slots, so that the trainer copies whole batches",
        edits=(
            (
                "shmloader/trainer/delivery.py",
                "BatchReader(ExceptionWrapper) if reader",
                "BatchReader(ExceptionWrapper, keeps=False) if reader",
            ),
            ("shmloader/trainer/iterator.py", "keeps=not private", "keeps=False"),
        ),
        tests=(
            "tests/core/test_small_leaves.py::test_kept_labels_of_a_stream_hold_no_slot",
            "tests/core/test_small_leaves.py::test_kept_labels_hold_no_slot",
        ),
        attack=True,
    ),
    Plant(
        fault="labels of page-locked batches are not page-locked",
        edits=(("shmloader/trainer/iterator.py", "device.clone, device.room, keeps", "device.clone, None, keeps"),),
        tests=("tests/device/test_small_page_locked.py::test_small_leaves_are_page_locked_and_copied_late",),
    ),
)

OF_PICTURES = (
    Plant(
        fault="images.fuse() never calls a dataset's own __getitem__, so what it catches or changes is lost",
        edits=(
            (
                "shmloader/images/fused.py",
                "    if not _is_stock(dataset):\n"
                '        return "its class has a __getitem__ of its own, which is called as it is"\n',
                "",
            ),
        ),
        tests=("tests/images/test_images_fuse.py::test_a_method_of_its_own_is_called",),
    ),
    Plant(
        fault="decode(rotate=True) takes no EXIF orientation that is not one SHORT",
        edits=(
            (
                "shmloader/images/decode.py",
                "(self._is_turned and orientation != 1) or (self._is_upright and orientation == _ASK_PILLOW)",
                "self._is_turned and orientation != 1",
            ),
            (
                "shmloader/images/decode.py",
                "self.width, self.height, self.orientation = opened",
                "self.width, self.height, self.orientation = *opened[:2], opened[2] or 1",
            ),
        ),
        tests=(f"{DECODE}test_an_orientation_in_another_form",),
    ),
    Plant(
        fault="of two EXIF segments, the second one's orientation is applied, and Pillow joins them",
        edits=(
            (
                "cython_ext/jpeg/header.c",
                "orientation = has_exif ? JPEG_ASK_PILLOW : read_orientation(s);",
                "if (orientation == NO_ORIENTATION || orientation == 1) orientation = read_orientation(s);",
            ),
        ),
        tests=(f"{DECODE}test_an_orientation_in_another_form",),
    ),
    Plant(
        fault="an orientation that only XMP has is not applied",
        edits=(
            (
                "cython_ext/jpeg/header.c",
                "orientation != NO_ORIENTATION ? orientation : in_xmp ? JPEG_ASK_PILLOW : 1;",
                "orientation != NO_ORIENTATION ? orientation : 1;",
            ),
        ),
        tests=(f"{DECODE}test_an_orientation_in_another_form",),
    ),
    Plant(
        fault="a picture with a segment that is cut short is decoded, and Pillow refuses it",
        edits=(
            (
                "cython_ext/jpeg/header.c",
                "        if (is_cut_short(marker, &s)) return JPEG_NOT_OURS;\n",
                "        (void)is_cut_short;\n",
            ),
        ),
        tests=(f"{DECODE}test_a_marker_that_pillow_refuses",),
    ),
    Plant(
        fault="a picture of more than 65,500 pixels across is decoded, and libjpeg refuses it",
        edits=(
            (
                "cython_ext/jpeg/header.c",
                "    if (header->width > LONGEST || header->height > LONGEST) return JPEG_NOT_OURS;\n",
                "",
            ),
        ),
        tests=(f"{DECODE}test_a_picture_that_libjpeg_refuses",),
    ),
    Plant(
        fault="images.fuse() drops the mode of a column, datasets.Image(mode='L'), and gives colours",
        edits=(("shmloader/images/picture_columns.py", '    if mode in (None, "RGB"):', "    if True:"),),
        tests=("tests/images/test_images_columns.py::test_the_mode_of_a_column",),
    ),
    Plant(
        fault="a row of a column without a picture is a TypeError that names neither row nor column",
        edits=(
            (
                "shmloader/images/picture_columns.py",
                "        picture = stored[self._image]\n        if picture is None:",
                "        picture = stored[self._image]\n        if False:",
            ),
        ),
        tests=("tests/images/test_images_columns.py::test_a_row_without_a_picture",),
    ),
    Plant(
        fault="a mean of Normalize that is changed in place is not followed",
        edits=(
            (
                "shmloader/images/following.py",
                "return any(value.tolist() != before for value, before in self._arrays)",
                "return False",
            ),
        ),
        tests=("tests/images/test_images_changed.py::test_a_mean_that_is_changed_in_place",),
    ),
    Plant(
        fault="a picture of 3,000 x 2 pixels by Resize(64) and CenterCrop(48) is a ValueError",
        edits=(
            (
                "shmloader/images/canvas.py",
                "if max(width, height) > LARGEST or self._is_too_large:",
                "if self._is_too_large:",
            ),
            (
                "shmloader/images/canvas.py",
                "return self._image is not None and max(self._image.size) > LARGEST",
                "return False",
            ),
        ),
        tests=("tests/images/test_images_panorama.py::test_3000_by_2_pixels",),
    ),
)

OF_SAMPLERS = (
    Plant(
        fault="an nn.Module that is a sampler or a stream is taken for one that says where it is",
        edits=(
            (
                "shmloader/protocols/user_objects.py",
                'return callable(found) and attribute(found, "__func__") is not getattr(torch.nn.Module, name)',
                "return callable(found)",
            ),
        ),
        tests=(f"{ASKED}test_a_module_as_sampler", "tests/resume/test_resume_streams.py::test_what_follows_each_place"),
        attack=True,
    ),
    Plant(
        fault="a sampler's state_dict() is called at each draw, although nobody has asked for a state",
        edits=(("shmloader/resume/sampler_states.py", "    asked = False", "    asked = True"),),
        tests=(f"{ASKED}test_it_is_asked_once_an_epoch_until_somebody_saves", f"{ASKED}test_other_loaders_do_not_ask"),
        attack=True,
    ),
    Plant(
        fault="a sampler whose state_dict() raises, or cannot be pickled, ends the epoch",
        edits=(
            (
                "shmloader/resume/sampler_states.py",
                "            self._pickled = _pickled_state(keeper)\n        except Exception as error:",
                "            self._pickled = _pickled_state(keeper)\n        except () as error:",
            ),
        ),
        tests=(f"{ASKED}test_epochs_are_torchs",),
        attack=True,
    ),
    Plant(
        fault="the loader has no state if the sampler's state_dict() is a stub that raises NotImplementedError",
        edits=(
            ("shmloader/resume/sampler_states.py", "isinstance(error, NotImplementedError), True", "False, True"),
            ("shmloader/resume/samplers.py", "except NotImplementedError:", "except ZeroDivisionError:"),
        ),
        tests=(
            f"{ASKED}test_not_implemented_counts_as_no_state",
            f"{ASKED}test_between_epochs_a_stub_has_no_state",
        ),
        attack=True,
    ),
    Plant(
        fault="the first state of mid-epoch lacks the generators from which the sampler drew, so another order comes",
        edits=(("shmloader/resume/sampler_states.py", "self._generators.text()", "'[]'"),),
        tests=(
            f"{ASKED}test_a_loop_that_seeds_again",
            "tests/resume/test_resume_own_samplers.py::test_the_rest_and_the_next_epoch",
        ),
        attack=True,
    ),
    Plant(
        fault="nothing says that a stream's states take most of a worker's time",
        edits=(
            (
                "shmloader/worker/fetch.py",
                "if not self._has_warned and self._states > LEAST * 1e9 and self._states > SHARE * self._all:",
                "if False:",
            ),
        ),
        tests=("tests/resume/test_resume_streams.py::test_one_warning_where_the_state_takes_long",),
    ),
)

OF_SYSTEMS = (
    Plant(
        fault="where a sandbox answers pidfd_open by EPERM, workers that do not end with the trainer by themselves die",
        edits=(
            (
                "shmloader/system/parents_death.py",
                "    except OSError:  # no descriptor is left; a kernel before 5.3, such as RHEL 8's; or a sandbox\n",
                "    except OSError as error:\n        if error.errno != 38:  # ENOSYS\n            raise\n",
            ),
        ),
        tests=(f"{SANDBOXES}test_all_of_them[EPERM-fork]",),
    ),
    Plant(
        fault="a ring cannot be made where a sandbox refuses memfd_create",
        edits=(
            (
                "shmloader/ring/segment.py",
                '                self.memfd = os.memfd_create("shmloader", os.MFD_CLOEXEC)\n'
                "            except OSError as error:",
                '                self.memfd = os.memfd_create("shmloader", os.MFD_CLOEXEC)\n'
                "            except () as error:",
            ),
        ),
        tests=(f"{SANDBOXES}test_a_ring_that_can_lie_nowhere", f"{REFUSED}[memfd_create-EPERM-fork]"),
    ),
    Plant(
        fault="frozen datasets and what is sent to workers cannot be made where a sandbox refuses memfd_create",
        edits=(
            (
                "shmloader/system/anonymous_files.py",
                "        return os.memfd_create(name, flags)\n    except OSError as error:",
                "        return os.memfd_create(name, flags)\n    except () as error:",
            ),
        ),
        tests=(f"{SANDBOXES}test_where_a_file_without_a_name_lies", f"{REFUSED}[memfd_create-EPERM-fork]"),
    ),
    Plant(
        fault="no worker can be started where a sandbox refuses eventfd",
        edits=(
            (
                "shmloader/trainer/watch.py",
                "= os.pipe()  # no eventfd: NOTE [ Sandboxes ]",
                "= (bye := os.eventfd(0, os.EFD_CLOEXEC), os.dup(bye))",
            ),
            ("shmloader/trainer/watch.py", 'os.write(self._bye[1], b"\\0")', "os.eventfd_write(self._bye[1], 1)"),
        ),
        tests=(f"{REFUSED}[eventfd2-EPERM-fork]",),
    ),
    Plant(
        fault="a slot has no pages where a sandbox refuses fallocate",
        edits=(
            (
                "shmloader/system/anonymous_files.py",
                "        os.posix_fallocate(fd, at, size)\n    except OSError as error:",
                "        os.posix_fallocate(fd, at, size)\n    except () as error:",
            ),
        ),
        tests=(f"{SANDBOXES}test_holes_between_pages_are_filled", f"{REFUSED}[fallocate-EPERM-fork]"),
    ),
    Plant(
        fault="a ring cannot be made where a sandbox refuses ftruncate",
        edits=(
            (
                "shmloader/system/anonymous_files.py",
                "        os.ftruncate(fd, size)\n    except OSError as error:",
                "        os.ftruncate(fd, size)\n    except () as error:",
            ),
        ),
        tests=(f"{REFUSED}[ftruncate-EPERM-fork]",),
    ),
    Plant(
        fault="no loader with workers can be made where a sandbox refuses sched_getaffinity",
        edits=(
            ("shmloader/system/limits.py", "    except OSError as error:", "    except () as error:"),
            ("shmloader/dataloader.py", " or (num_workers and hides_cores()):", ":"),
        ),
        tests=(f"{REFUSED}[sched_getaffinity-EPERM-fork]",),
    ),
    Plant(
        fault="where a sandbox refuses prctl, workers outlive a trainer that is killed",
        edits=(
            (
                "cython_ext/process/process.pyx",
                "        if (prctl(PR_SET_PDEATHSIG, ORPHANED))\n            return 0;",
                "        prctl(PR_SET_PDEATHSIG, ORPHANED);",
            ),
        ),
        tests=(f"{SANDBOXES}test_workers_still_end_with_their_trainer[fork]",),
    ),
    Plant(
        fault="where there is no /proc, a larger batch is FileNotFoundError of /proc/meminfo",
        edits=(
            ("shmloader/system/limits.py", "    except OSError:  # without /proc, all of it\n", "    except ():\n"),
        ),
        tests=(f"{SANDBOXES}test_no_proc[fork]",),
    ),
    Plant(
        fault="a batch that does not fit into an equal share of the addresses (ulimit -v) is a MemoryError",
        edits=(
            ("shmloader/ring/segment.py", "tail = up(physical_memory(), PAGE)", "tail = 0"),
            ("shmloader/ring/segment.py", "limit // (4 if stays else 16)", "limit // 4"),
        ),
        tests=("tests/ring/test_rooms.py::test_a_slot_outgrows_its_room",),
    ),
    Plant(
        fault="prefetch_factor=100_000 makes 100,000 slots for each worker, though the epoch has five batches",
        edits=(
            (
                "shmloader/trainer/schedule.py",
                "return usual if batches is None else min(usual, max(batches + 1, int(loader.num_workers)))",
                "return usual",
            ),
        ),
        tests=("tests/ring/test_rooms.py::test_no_more_slots_than_the_epoch_has_batches",),
    ),
)

OF_OBJECTS = (
    Plant(
        fault="a loader that has no hash, as a dataclass, or whose == raises, cannot be used",
        edits=(
            ("shmloader/resume/place.py", "ByIdentity[Place] = ByIdentity()", "Any = weakref.WeakKeyDictionary()"),
            (
                "shmloader/statistics/account.py",
                "ByIdentity[Account] = ByIdentity()",
                "Any = weakref.WeakKeyDictionary()",
            ),
            (
                "shmloader/checks/read_elsewhere.py",
                "ByIdentity[str] = ByIdentity()",
                "Any = weakref.WeakKeyDictionary()",
            ),
        ),
        tests=(f"{IDENTITY}test_a_dataclass",),
        attack=True,
    ),
    Plant(
        fault="a loader that has no hash cannot skip bad samples",
        edits=(
            (
                "shmloader/trainer/bad_samples.py",
                "ByIdentity[_Account] = ByIdentity()",
                'Any = __import__("weakref").WeakKeyDictionary()',
            ),
        ),
        tests=(f"{IDENTITY}test_options_states_and_reports_of_ours[skip]",),
        attack=True,
    ),
    Plant(
        fault="a collate_fn or on_device whose == raises makes torch's own loader fail, beside ours over one dataset",
        edits=(
            (
                "shmloader/checks/read_elsewhere.py",
                "return one is other or (type(one) is type(other) and type(one) in _PLAIN and bool(one == other))",
                "return bool(one == other)",
            ),
        ),
        tests=(f"{IDENTITY}test_a_loader_of_torchs_over_the_same_dataset",),
    ),
    Plant(
        fault="a multiprocessing_context that may not be asked whether it is true cannot be used",
        edits=(
            (
                "shmloader/trainer/iterator.py",
                "    context = loader.multiprocessing_context\n    if context is None:\n"
                "        context = torch.multiprocessing\n",
                "    context = loader.multiprocessing_context or torch.multiprocessing\n",
            ),
        ),
        tests=(f"{IDENTITY}test_forms_with_workers[context]",),
    ),
    Plant(
        fault="a property of a sampler or a dataset that raises until something is set up ends the epoch",
        edits=(
            (
                "shmloader/protocols/user_objects.py",
                "        return getattr(of, name)\n    except Exception as error:",
                "        return getattr(of, name)\n    except AttributeError as error:",
            ),
        ),
        tests=("tests/face/test_raising_attributes.py::test_each_name_that_raises_counts_as_absent",),
        attack=True,
    ),
    Plant(
        fault="what a signal's handler raises while an attribute is looked up is lost",
        edits=(
            (
                "shmloader/protocols/user_objects.py",
                "    if error.__traceback__ is None or error.__traceback__.tb_next is None:",
                "    if True:",
            ),
        ),
        tests=("tests/face/test_raising_attributes.py::test_a_handlers_exception_comes_through",),
    ),
    Plant(
        fault="beside a loader of ours, a subclass of torch's whose __getattr__ knows every name is refused",
        edits=(
            (
                "shmloader/checks/read_elsewhere.py",
                'hasattr(type(loader), "why_not_ring")',
                'hasattr(loader, "why_not_ring")',
            ),
        ),
        tests=("tests/face/test_off_the_ring.py::test_torchs_loader_that_has_an_attribute_of_every_name",),
    ),
    Plant(
        fault="where gevent has replaced threads, workers start, and the process ends by SIGSEGV",
        edits=(("shmloader/trainer/before_workers.py", "    if patched:", "    if False:"),),
        tests=("tests/system/test_green_threads.py::test_what_gevent_has_replaced",),
    ),
    Plant(
        fault="Shards leaves members such as json.gz packed, which WebDataset unpacks",
        edits=(("shmloader/storage/decoders.py", '    if last != "gz":\n        return None\n', "    return None\n"),),
        tests=("tests/storage/test_shards.py::test_members_that_gzip_has_packed",),
    ),
)

PLANTS: tuple[Plant, ...] = (
    *OF_DATASETS,
    *OF_BATCHES,
    *OF_PICTURES,
    *OF_SAMPLERS,
    *OF_SYSTEMS,
    *OF_OBJECTS,
)
