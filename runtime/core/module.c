/* The module `stepscope.runtime._core`. Documented in _core.pyi, as are all functions with `_py_` in their names. */
#include "system/readings.h"

Counts g_counts;
int span_init(void);
int step_init(void);

PyObject *py_now(PyObject *self, PyObject *unused) { return PyLong_FromLongLong(clock_now()); }

PyObject *py_counts(PyObject *self, PyObject *unused) {
#define COUNT(name) #name, (unsigned long long)atomic_load(&g_counts.name)
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsK}", COUNT(names_cut), COUNT(strings_full), COUNT(categories_full),
                         COUNT(values_cut), COUNT(arguments_cut), COUNT(arguments_opaque),
                         COUNT(counter_values_that_are_no_number), COUNT(deep_spans), COUNT(spans_abandoned),
                         COUNT(rings_failed), COUNT(lookups_failed));
#undef COUNT
}

PyObject *py_process_track(PyObject *self, PyObject *unused) { return PyLong_FromUnsignedLong(track_process()); }

/* The functions of the module: Python's name, the function, how it is called, its documentation. */
#define FUNCTIONS(PLAIN, FAST) \
    PLAIN(align, align_py_align, VARARGS, NULL) \
    PLAIN(allow_seconds, signals_py_allow, O, NULL) \
    PLAIN(arrow_columns, arrow_py_columns, VARARGS, NULL) \
    FAST(call_under, context_py_call_under, NULL) \
    PLAIN(called_by, native_thread_py_called_by, O, NULL) \
    PLAIN(category, strings_py_category, O, NULL) \
    PLAIN(changing, step_py_changing, O, NULL) \
    PLAIN(clear_wake, ring_py_clear_wake, NOARGS, NULL) \
    PLAIN(close, ring_py_close, NOARGS, NULL) \
    FAST(collection, readings_py_collection, NULL) \
    PLAIN(copy_span, span_py_copy, O, "The same as its method `copy`: a function, which torch's compiler knows.") \
    PLAIN(count_touching, survey_py_count_touching, VARARGS, NULL) \
    PLAIN(count_until, search_py_count_until, VARARGS, NULL) \
    FAST(counter, span_py_counter, \
         "counter(name, value, /, *, category='user_annotation')\n--\n\n" \
         "The value of something at this moment; any number, also NaN.") \
    PLAIN(counts, py_counts, NOARGS, NULL) \
    FAST(crc32, crc32_py_of, NULL) \
    PLAIN(current_span, context_py_current_span, NOARGS, NULL) \
    PLAIN(decode_arguments, arguments_py_decode, VARARGS, NULL) \
    PLAIN(decode_columns, columns_py_decode, VARARGS, NULL) \
    PLAIN(decompress, zstd_py_decompress, VARARGS, NULL) \
    PLAIN(detach_files, ring_py_detach_files, O, NULL) \
    PLAIN(die_of_signal, signals_py_die_of, O, NULL) \
    PLAIN(drain, ring_py_drain, VARARGS, NULL) \
    PLAIN(encode_arguments, arguments_py_encode, O, NULL) \
    PLAIN(encode_chrome, chrome_py_encode, VARARGS, NULL) \
    PLAIN(encode_frames, columns_py_encode_frames, VARARGS, NULL) \
    PLAIN(event_costs, cost_py_event_costs, NOARGS, NULL) \
    PLAIN(file_heads, file_heads_py_read, VARARGS, NULL) \
    FAST(flow, span_py_flow, \
         "flow(name, id, phase, /, *, category='user_annotation')\n--\n\n" \
         "An arrow between the spans that enclose its calls.\n\n" \
         "Args:\n    id: links the calls of one arrow.\n    phase: 'start', 'step' or 'end'.") \
    PLAIN(forget_signal, signals_py_forget, NOARGS, NULL) \
    PLAIN(has_zstd, zstd_py_available, NOARGS, NULL) \
    PLAIN(heap_range, survey_py_heap_range, O, NULL) \
    FAST(instant, span_py_instant, \
         "instant(name, /, *, category='user_annotation', **arguments)\n--\n\n" \
         "Something that happened at this moment.") \
    PLAIN(intern, strings_py_intern, O, NULL) \
    PLAIN(itt_statistics, itt_py_statistics, NOARGS, NULL) \
    PLAIN(joins, control_py_joins, NOARGS, NULL) \
    PLAIN(leave, ring_py_detach, NOARGS, NULL) \
    PLAIN(left_out, wants_py_omitted, NOARGS, NULL) \
    PLAIN(make_files, ring_py_make_files, O, NULL) \
    PLAIN(mark_rings, ring_py_mark, NOARGS, NULL) \
    PLAIN(name_process, track_py_name_process, VARARGS, NULL) \
    PLAIN(now, py_now, NOARGS, NULL) \
    PLAIN(open, ring_py_open, VARARGS, NULL) \
    PLAIN(open_spans, stack_py_open_spans, NOARGS, NULL) \
    PLAIN(part_of_block, survey_py_part, VARARGS, NULL) \
    PLAIN(past_span, readings_py_past_span, VARARGS, NULL) \
    PLAIN(private_slots, ring_py_private, NOARGS, NULL) \
    PLAIN(process_track, py_process_track, NOARGS, NULL) \
    PLAIN(put, readings_py_put, VARARGS, NULL) \
    PLAIN(read_proc, thread_times_py_read_file, O, NULL) \
    PLAIN(readings_at, search_py_readings_at, VARARGS, NULL) \
    PLAIN(record_tasks, coroutine_py_record_tasks, O, NULL) \
    PLAIN(recording, control_py_recording, NOARGS, NULL) \
    PLAIN(release_late, ring_py_release_late, O, NULL) \
    PLAIN(release_rings, ring_py_release, NOARGS, NULL) \
    PLAIN(ring_statistics, ring_py_statistics, NOARGS, NULL) \
    PLAIN(runs_programs_code, mask_py_runs_programs_code, NOARGS, NULL) \
    PLAIN(sample, sampling_py_sample, VARARGS, NULL) \
    PLAIN(set_at_risk, control_py_set_at_risk, O, NULL) \
    PLAIN(set_decorator, span_py_set_decorator, O, NULL) \
    PLAIN(set_known_values, arguments_py_set_known_values, O, NULL) \
    PLAIN(set_standard_modules, sampling_py_set_standard, O, NULL) \
    PLAIN(set_survey_categories, survey_py_set_categories, VARARGS, NULL) \
    PLAIN(set_task_lookup, context_py_set_task_lookup, O, NULL) \
    PLAIN(signal_that_came, signals_py_came, NOARGS, NULL) \
    PLAIN(signals_watched, signals_py_watched, NOARGS, NULL) \
    PLAIN(start_thread, native_thread_py_start, VARARGS, NULL) \
    PLAIN(step_spans, survey_py_step_spans, VARARGS, NULL) \
    PLAIN(strings_count, strings_py_count, NOARGS, NULL) \
    PLAIN(survey, survey_py_survey, O, NULL) \
    PLAIN(wake_samplers, control_py_wake_samplers, NOARGS, NULL) \
    PLAIN(take_refused, control_py_read_refused, O, NULL) \
    PLAIN(text, strings_py_text, O, NULL) \
    PLAIN(thread_times, thread_times_py_read, O, NULL) \
    PLAIN(thread_track, readings_py_thread_track, NOARGS, NULL) \
    PLAIN(track, track_py_new, VARARGS, NULL) \
    PLAIN(tracks, track_py_since, VARARGS, NULL) \
    PLAIN(unnamed_tracks, survey_py_unnamed_tracks, VARARGS, NULL) \
    PLAIN(unprofile_threads, native_thread_py_unprofile, O, NULL) \
    PLAIN(unreleased, ring_py_unreleased, NOARGS, NULL) \
    PLAIN(unwatch_signals, signals_py_unwatch, NOARGS, NULL) \
    PLAIN(want, wants_py_want, VARARGS, NULL) \
    PLAIN(watch_directory, directory_watch_py_open, O, NULL) \
    PLAIN(watch_signal, signals_py_watch, VARARGS, NULL) \
    FAST(with_programs_mask, mask_py_with_programs, NULL) \
    PLAIN(with_steps, survey_py_with_steps, VARARGS, NULL) \
    FAST(without_signals, mask_py_without_signals, NULL)

#define DECLARE(name, function, flags, doc) PyObject *function(PyObject *, PyObject *);
#define DECLARE_FAST(name, function, doc) PyObject *function(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
FUNCTIONS(DECLARE, DECLARE_FAST)

#define METHOD(name, function, flags, doc) {#name, function, METH_##flags, doc},
#define METHOD_FAST(name, function, doc) {#name, (PyCFunction)(void (*)(void))function, METH_FASTCALL | METH_KEYWORDS, doc},
static PyMethodDef methods[] = {FUNCTIONS(METHOD, METHOD_FAST){NULL}};

/* State is static, as the recorder is one per process: single-phase initialisation, no subinterpreters. */
static PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "stepscope.runtime._core", .m_size = -1, .m_methods = methods};

static int add_type(PyObject *m, PyTypeObject *type, const char *name) {
    return PyType_Ready(type) < 0 ? -1 : PyModule_AddObjectRef(m, name, (PyObject *)type);
}

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *m = PyModule_Create(&module);
    if (!m || ring_init() < 0 || context_init() < 0 || coroutine_init() < 0 || span_init() < 0 || step_init() < 0) return NULL;
    if (add_type(m, &CoroutineType, "Coroutine") < 0 || add_type(m, &SpanType, "span") < 0 ||
        add_type(m, &StepCounterType, "StepCounter") < 0 || add_type(m, &AggregatesType, "Aggregates") < 0 ||
        add_type(m, &AttachedType, "Attached") < 0 || add_type(m, &SpanIntervalsType, "SpanIntervals") < 0 ||
        add_type(m, &PerfettoEncoderType, "PerfettoEncoder") < 0 || PyModule_AddIntMacro(m, FIRST_NAME) < 0 ||
        PyModule_AddIntMacro(m, MAX_TRACKS) < 0 || PyModule_AddIntMacro(m, MAX_NAME) < 0 ||
        PyModule_AddIntMacro(m, RECORD_EVENTS) < 0 || PyModule_AddIntMacro(m, RECORD_OPERATORS) < 0 ||
        PyModule_AddIntMacro(m, RECORD_OPEN) < 0 || PyModule_AddStringMacro(m, ITT_UNRECORDED) < 0)
        return NULL;
    return m;
}
