/* The module `stepscope.runtime._core`. Documented in _core.pyi. */
#include "system/readings.h"
#include "encoders/event_columns.h"

Counts g_counts;
int span_init(void);
int step_init(void);

static PyObject *py_now(PyObject *self, PyObject *unused) { return PyLong_FromLongLong(clock_now()); }

static PyObject *py_counts(PyObject *self, PyObject *unused) {
#define COUNT(name) #name, (unsigned long long)atomic_load(&g_counts.name)
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsK}", COUNT(names_cut), COUNT(strings_full), COUNT(categories_full),
                         COUNT(values_cut), COUNT(arguments_cut), COUNT(arguments_opaque),
                         COUNT(counter_values_that_are_no_number), COUNT(deep_spans), COUNT(spans_abandoned),
                         COUNT(rings_failed), COUNT(lookups_failed));
#undef COUNT
}

static PyObject *py_process_track(PyObject *self, PyObject *unused) { return PyLong_FromUnsignedLong(track_process()); }

#define FAST(function) (PyCFunction)(void (*)(void))function
static PyMethodDef methods[] = {
    {"make_files", ring_py_make_files, METH_O, NULL},
    {"call_under", FAST(context_py_call_under), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"category", strings_py_category, METH_O, NULL},
    {"changing", step_py_changing, METH_O, NULL},
    {"collection", FAST(readings_py_collection), METH_FASTCALL, NULL},
    {"clear_wake", ring_py_clear_wake, METH_NOARGS, NULL},
    {"close", ring_py_close, METH_NOARGS, NULL},
    {"copy_span", span_py_copy, METH_O, "The same as its method `copy`: a function, which torch's compiler can be told of."},
    {"counter", FAST(span_py_counter), METH_FASTCALL | METH_KEYWORDS,
     "counter(name, value, /, *, category='user_annotation')\n--\n\nThe value of something at this moment; any number, also NaN."},
    {"counts", py_counts, METH_NOARGS, NULL},
    {"span_intervals", intervals_py_of_spans, METH_VARARGS, NULL},
    {"current_span", context_py_current_span, METH_NOARGS, NULL},
    {"decode_arguments", arguments_py_decode, METH_VARARGS, NULL},
    {"detach_files", ring_py_detach_files, METH_O, NULL},
    {"allow_seconds", signals_py_allow, METH_O, NULL},
    {"signal_that_came", signals_py_came, METH_NOARGS, NULL},
    {"forget_signal", signals_py_forget, METH_NOARGS, NULL},
    {"die_of_signal", signals_py_die_of, METH_O, NULL},
    {"drain", ring_py_drain, METH_VARARGS, NULL},
    {"encode_arguments", arguments_py_encode, METH_O, NULL},
    {"encode_chrome", FAST(chrome_py_encode), METH_VARARGS | METH_KEYWORDS, NULL},
    {"event_costs", cost_py_event_costs, METH_NOARGS, NULL},
    {"flow", FAST(span_py_flow), METH_FASTCALL | METH_KEYWORDS,
     "flow(name, id, phase, /, *, category='user_annotation')\n--\n\nAn arrow between the spans that enclose its calls.\n\n"
     "Args:\n    id: links the calls of one arrow.\n    phase: 'start', 'step' or 'end'."},
    {"instant", FAST(span_py_instant), METH_FASTCALL | METH_KEYWORDS,
     "instant(name, /, *, category='user_annotation', **arguments)\n--\n\nSomething that happened at this moment."},
    {"intern", strings_py_intern, METH_O, NULL},
    {"itt_statistics", itt_py_statistics, METH_NOARGS, NULL},
    {"join", ring_py_join, METH_VARARGS, NULL},
    {"joins", control_py_joins, METH_NOARGS, NULL},
    {"leave", ring_py_detach, METH_NOARGS, NULL},
    {"left_out", wants_py_omitted, METH_NOARGS, NULL},
    {"name_process", track_py_name_process, METH_VARARGS, NULL},
    {"now", py_now, METH_NOARGS, NULL},
    {"open", ring_py_open, METH_VARARGS, NULL},
    {"open_spans", stack_py_open_spans, METH_NOARGS, NULL},
    {"past_span", readings_py_past_span, METH_VARARGS, NULL},
    {"process_track", py_process_track, METH_NOARGS, NULL},
    {"put", readings_py_put, METH_VARARGS, NULL},
    {"share_time", intervals_py_share_time, METH_VARARGS, NULL},
    {"intervals_ending_after", intervals_py_ending_after, METH_VARARGS, NULL},
    {"intervals_all_on", intervals_py_all_on, METH_VARARGS, NULL},
    {"heap_range", survey_py_heap_range, METH_O, NULL},
    {"with_heap_from", survey_py_with_heap_from, METH_VARARGS, NULL},
    {"count_until", search_py_count_until, METH_VARARGS, NULL},
    {"record_tasks", coroutine_py_record_tasks, METH_O, NULL},
    {"private_slots", ring_py_private, METH_NOARGS, NULL},
    {"readings_at", search_py_readings_at, METH_VARARGS, NULL},
    {"recording", control_py_recording, METH_NOARGS, NULL},
    {"mark_rings", ring_py_mark, METH_NOARGS, NULL},
    {"release_late", ring_py_release_late, METH_O, NULL},
    {"release_rings", ring_py_release, METH_NOARGS, NULL},
    {"ring_statistics", ring_py_statistics, METH_NOARGS, NULL},
    {"unreleased", ring_py_unreleased, METH_NOARGS, NULL},
    {"runs_programs_code", mask_py_runs_programs_code, METH_NOARGS, NULL},
    {"sample", sampling_py_sample, METH_VARARGS, NULL},
    {"set_known_values", arguments_py_set_known_values, METH_O, NULL},
    {"set_decorator", span_py_set_decorator, METH_O, NULL},
    {"set_standard_modules", sampling_py_set_standard, METH_O, NULL},
    {"set_task_lookup", context_py_set_task_lookup, METH_O, NULL},
    {"set_at_risk", control_py_set_at_risk, METH_O, NULL},
    {"start_thread", native_thread_py_start, METH_VARARGS, NULL},
    {"called_by", native_thread_py_called_by, METH_O, NULL},
    {"strings_since", strings_py_since, METH_O, NULL},
    {"take_refused", control_py_read_refused, METH_O, NULL},
    {"decode_columns", columns_py_decode, METH_VARARGS, NULL},
    {"decompress", zstd_py_decompress, METH_VARARGS, NULL},
    {"denied", control_py_denied, METH_O, NULL},
    {"encode_frames", columns_py_encode_frames, METH_VARARGS, NULL},
    {"has_zstd", zstd_py_available, METH_NOARGS, NULL},
    {"align", align_py_align, METH_VARARGS, NULL},
    {"arrow_columns", arrow_py_columns, METH_VARARGS, NULL},
    {"unnamed_tracks", survey_py_unnamed_tracks, METH_VARARGS, NULL},
    {"of_kind", survey_py_of_kind, METH_VARARGS, NULL},
    {"set_survey_categories", survey_py_set_categories, METH_VARARGS, NULL},
    {"count_touching", survey_py_count_touching, METH_VARARGS, NULL},
    {"touching", survey_py_touching, METH_VARARGS, NULL},
    {"survey", survey_py_survey, METH_O, NULL},
    {"with_steps", survey_py_with_steps, METH_VARARGS, NULL},
    {"step_spans", survey_py_step_spans, METH_VARARGS, NULL},
    {"text", strings_py_text, METH_O, NULL},
    {"read_proc", thread_times_py_read_file, METH_O, NULL},
    {"thread_times", thread_times_py_read, METH_O, NULL},
    {"thread_track", readings_py_thread_track, METH_NOARGS, NULL},
    {"track", track_py_new, METH_VARARGS, NULL},
    {"tracks", track_py_since, METH_VARARGS, NULL},
    {"unprofile_threads", native_thread_py_unprofile, METH_O, NULL},
    {"unwatch_signals", signals_py_unwatch, METH_NOARGS, NULL},
    {"want", wants_py_want, METH_VARARGS, NULL},
    {"watch_signal", signals_py_watch, METH_VARARGS, NULL},
    {"with_programs_mask", FAST(mask_py_with_programs), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"without_signals", FAST(mask_py_without_signals), METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL},
};

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
        add_type(m, &AttachedType, "Attached") < 0 || add_type(m, &PerfettoEncoderType, "PerfettoEncoder") < 0 ||
        PyModule_AddIntMacro(m, FIRST_NAME) < 0 || PyModule_AddIntMacro(m, MAX_TRACKS) < 0 ||
        PyModule_AddIntMacro(m, MAX_NAME) < 0 || PyModule_AddIntMacro(m, RECORD_EVENTS) < 0 ||
        PyModule_AddIntMacro(m, RECORD_OPERATORS) < 0 || PyModule_AddIntMacro(m, RECORD_OPEN) < 0 ||
        PyModule_AddStringMacro(m, ITT_UNRECORDED) < 0)
        return NULL;
    return m;
}
