#!/usr/bin/env bash
# Runs the tests of the native core with a sanitizer compiled into it.
# usage: tests/stress/sanitize.sh [address|thread] [pytest arguments]
#   address: AddressSanitizer and UndefinedBehaviorSanitizer (six minutes); thread: ThreadSanitizer (four minutes)
#   PYTHON: interpreter with what the tests need, .venv's if not given; CC: gcc
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
cc=${CC:-gcc}
kind=address
case "${1:-}" in address | thread) kind=$1 && shift ;; esac
nouns=(span strings arguments journal_columns instant ring attached_rings session stack tasks suspended task_factory task_tracks
  parents spans_across_yield interleaved many_threads random_programs decorate step_counter signals_while_recording aggregates step_facts step_statistics
  chrome_encoder perfetto_encoder perfetto_nesting overflow inbox arrow_columns overhead rapid_windows reentrance hanging_calls itt
  unnoticed_signals signal_handlers signal_threads termination locks known_values blocks segments)
library() { "$cc" -print-file-name="lib$1.so"; }
# The interpreter is not instrumented, so the sanitizer's library must be loaded before it.
if [ "$kind" = address ]; then
  nouns+=(interrupted exit fork joining workers worker_accounts late_release recovery recovery_gaps fuzz signals_recorded)
  flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
  preload="$(library asan) $(library ubsan)"
  # Python's own allocator hides what was freed; what the interpreter never frees is no leak of ours.
  export PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=8:abort_on_error=1
  export UBSAN_OPTIONS=print_stacktrace=1
  run=()
else
  # Without fork: ThreadSanitizer cannot start threads in a child. With addresses where it expects them.
  flags=-fsanitize=thread
  preload=$(library tsan)
  run=(setarch --addr-no-randomize)
  # The sanitizer's notes of each address count as memory of the program, and the last of these forks.
  set -- --deselect tests/integration/runtime/session/test_session.py::test_a_million_spans_need_no_memory \
    --deselect tests/integration/runtime/session/test_session.py::test_a_session_that_cannot_be_opened "$@"
  # It holds a signal back while the main thread is in a call that it does not watch, as native code and read() are.
  set -- --deselect tests/integration/runtime/threads/test_unnoticed_signals.py::test_sigterm_while_ \
    --deselect tests/integration/runtime/threads/test_unnoticed_signals.py::test_delivered_events_take_no_memory_any_more \
    --deselect tests/integration/runtime/threads/test_signal_handlers.py::test_a_handler_that_was_put_back_is_heard_in_native_code \
    --deselect tests/integration/runtime/threads/test_signal_handlers.py::test_a_handler_that_faulthandler_calls_on \
    --deselect tests/integration/runtime/threads/test_signal_threads.py::test_any_call_of_the_main_thread \
    --deselect tests/integration/runtime/threads/test_signal_threads.py::test_the_main_thread_is_in_native_code "$@"
  # These fork.
  set -- --deselect tests/integration/runtime/threads/test_unnoticed_signals.py::test_a_fork_while --deselect tests/integration/runtime/threads/test_unnoticed_signals.py::test_a_child_that \
    --deselect tests/integration/runtime/threads/test_signal_threads.py::test_children_have_it \
    --deselect tests/integration/runtime/threads/test_termination.py::test_a_forked_child "$@"
fi

# In a copy, so that the core that is in use stays as it is.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# libuv closes descriptors by the bare system call, so that whoever is given the number next seems to race with it.
echo "race:uv__" >"$copy/suppressions"
export TSAN_OPTIONS="suppressions=$copy/suppressions"
tar cf - --exclude=__pycache__ --exclude='*.so' pyproject.toml setup.py README.md stepscope runtime backends exporters collector analysis compat tools tests |
  tar xf - -C "$copy"
cd "$copy"
STEPSCOPE_DEBUG_BUILD=1 CC="$cc" CFLAGS="$flags -fno-omit-frame-pointer" \
  "$python" -W ignore setup.py -q build --build-lib built
# As it is installed: Python finds `stepscope` here before it asks where the checkout's parts are.
rm -rf stepscope && mv built/stepscope stepscope
files=()
for noun in "${nouns[@]}"; do files+=("$(find tests -name "test_$noun.py")"); done
LD_PRELOAD="$preload" PYTHONPATH="$copy" \
  "${run[@]}" "$python" -m pytest -q -p no:cacheprovider --capture=sys "${files[@]}" "$@"
