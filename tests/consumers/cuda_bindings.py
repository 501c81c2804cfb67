#!/usr/bin/env python3
"""Every function of NVIDIA's Python bindings for cuFile, `cuda.bindings.cufile`, through the libcufile of this process.

    forebay run -- python3 cuda_bindings.py

Needs cuda-bindings and numpy (those of CUDA 12 have fewer functions); runs over a GPU or the software GPU.
"""

import bindings_files as files
import bindings_queues as queues
import bindings_settings as settings
import checks
from bindings_common import cufile, start
from checks import equal


def every_function_was_called():
    equal(sorted(cufile.functions() - cufile.called), [], "not called")
    print(f"        {len(cufile.called)} functions")


CHECKS = [
    files.version_is_what_was_said,
    files.uses_are_counted,
    files.the_first_registration_opens,
    files.closing_ends_handles,
    files.properties_tell_what_was_set,
    files.files_that_cannot_be_registered_are_refused,
    files.the_descriptor_stays_the_callers,
    files.buffers_are_registered_and_checked,
    files.bytes_go_both_ways_with_any_memory_and_alignment,
    files.registered_memory_and_pointers_inside_of_it,
    files.memory_mapped_in_several_parts_is_one,
    files.files_end,
    files.mistakes_are_told_by_errno,
    files.many_threads_share_a_handle,
    files.vectors_if_the_bindings_have_them,
    queues.batches_write_and_read,
    queues.each_entry_of_a_batch_has_its_own_result,
    queues.batches_refuse_what_they_cannot_do,
    queues.batches_are_cancelled_and_time_out,
    queues.streams_are_registered,
    queues.streams_write_and_read,
    queues.streams_keep_their_order,
    queues.streams_tell_short_reads_and_mistakes,
    settings.size_parameters_come_back_as_set,
    settings.ranges_of_size_parameters,
    settings.flags_come_back_as_set,
    settings.texts_come_back_as_set,
    settings.pools_of_slabs_come_back_as_set,
    settings.statistics_have_levels,
    settings.statistics_count,
    settings.bars_have_a_size,
    settings.errors_have_texts,
    every_function_was_called,
]

if __name__ == "__main__":
    checks.main(CHECKS, start)
