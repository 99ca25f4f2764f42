/* Readings: what the system says of the thread that steps and of its process, and how long garbage collections take.
 *
 * Files of /proc are kept open, as opening one costs more than reading it. A program may close descriptors that are not its
 * own: a file is closed only if it is still the one that was opened. */
#include "core.h"
#include "system/readings.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CPU, RUN_QUEUE, RESIDENT, FAULTS, PREEMPTIONS, WRITTEN, SIGNALS }; /* as runtime/windows/step_facts.py has them */
#define SHORT_COLLECTION 20000 /* ns; shorter ones of generation 0 are too many to record */

static uint32_t names[SIGNALS], collection_name, generation_key, collected_key, uncollectable_key;
static uint16_t signal_category, collection_category;
static long page_bytes;

static bool same_file(const ProcFile *file) {
    struct stat now;
    return file->fd && !fstat(file->fd - 1, &now) && now.st_dev == file->device && now.st_ino == file->inode;
}

static void proc_open(ProcFile *file, const char *path) {
    struct stat opened;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &opened)) close(fd), fd = -1;
    if (fd >= 0) *file = (ProcFile){fd + 1, opened.st_dev, opened.st_ino};
}

static void proc_close(ProcFile *file) {
    if (same_file(file)) close(file->fd - 1);
    *file = (ProcFile){0};
}

/* The text of a file, zero terminated; false if there is none. */
static bool proc_read(const ProcFile *file, char *text, size_t room) {
    ssize_t got = file->fd ? pread(file->fd - 1, text, room - 1, 0) : -1;
    if (got > 0) text[got] = 0;
    return got > 0;
}

/* Number `index`, from 0, of a text that begins with numbers; -1 if it has not so many. */
static double number_at(const char *text, int index) {
    for (;; index--) {
        char *end;
        unsigned long long value = strtoull(text, &end, 10);
        if (end == text) return -1;
        if (!index) return (double)value;
        text = end;
    }
}

void readings_close(Readings *readings) {
    proc_close(&readings->schedstat), proc_close(&readings->statm), proc_close(&readings->io);
    readings->thread = 0;
}

static void open_for(Readings *readings, uint64_t thread) {
    readings_close(readings);
    readings->thread = thread;
    proc_open(&readings->schedstat, "/proc/thread-self/schedstat");
    proc_open(&readings->statm, "/proc/self/statm");
    proc_open(&readings->io, "/proc/thread-self/io");
}

static void read_all(const Readings *readings, double *values) {
    char text[1024];
    struct timespec cpu;
    struct rusage usage;
    for (int i = 0; i < SIGNALS; i++) values[i] = -1;
    if (!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu)) values[CPU] = (double)cpu.tv_sec * 1e9 + (double)cpu.tv_nsec;
    if (!getrusage(RUSAGE_THREAD, &usage)) {
        values[FAULTS] = (double)(usage.ru_minflt + usage.ru_majflt);
        values[PREEMPTIONS] = (double)usage.ru_nivcsw;
    }
    if (proc_read(&readings->schedstat, text, sizeof text)) values[RUN_QUEUE] = number_at(text, 1);
    if (proc_read(&readings->statm, text, sizeof text)) {
        double pages = number_at(text, 1);
        values[RESIDENT] = pages < 0 ? -1 : pages * (double)page_bytes;
    }
    const char *found = proc_read(&readings->io, text, sizeof text) ? strstr(text, "\nwrite_bytes: ") : NULL;
    if (found) values[WRITTEN] = number_at(found + 14, 0);
}

void readings_write(Readings *readings, Thread *thread, const Event *mark, int64_t at) {
    double values[SIGNALS];
    if (readings->thread != thread->serial) open_for(readings, thread->serial);
    read_all(readings, values);
    for (int i = 0; i < SIGNALS; i++) {
        if (values[i] < 0) continue;
        Event event = {.ts = at,
                       .value = values[i],
                       .name = names[i],
                       .category = signal_category,
                       .kind = KIND_COUNTER,
                       .track = mark->track,
                       .parent = mark->parent};
        ring_write(thread, &event, NULL, 0);
    }
}

static long info_number(PyObject *info, const char *key) {
    PyObject *value = PyDict_Check(info) ? PyDict_GetItemString(info, key) : NULL;
    return value && PyLong_Check(value) ? PyLong_AsLong(value) : 0;
}

/* For gc.callbacks. No handler of a signal may run in here, as gc passes over what it raises. */
PyObject *readings_py_collection(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *keys) {
    static int64_t began; /* there is one collection at a time */
    if (n != 2 || keys || !PyUnicode_Check(args[0])) return PyErr_Format(PyExc_TypeError, "collection(phase, info)");
    if (!PyUnicode_CompareWithASCIIString(args[0], "start")) {
        began = recording(RECORD_EVENTS) ? clock_now() : 0;
        Py_RETURN_NONE;
    }
    int64_t begin = began, end = clock_now();
    began = 0;
    long generation = info_number(args[1], "generation");
    if (!begin || (generation == 0 && end - begin < SHORT_COLLECTION)) Py_RETURN_NONE;
    Thread *thread = thread_current_object();
    if (!thread) Py_RETURN_NONE;
    ArgBuffer buffer;
    buffer.len = 0;
    int64_t values[] = {generation, info_number(args[1], "collected"), info_number(args[1], "uncollectable")};
    arg_put(&buffer, generation_key, 'i', &values[0], sizeof values[0]);
    arg_put(&buffer, collected_key, 'i', &values[1], sizeof values[1]);
    arg_put(&buffer, uncollectable_key, 'i', &values[2], sizeof values[2]);
    Open open;
    span_open(thread, stack_without_gil(thread), &open, collection_name, collection_category, 0);
    open.ts = begin;
    span_close(thread, &open, end, 0, 0, 0, buffer.bytes, buffer.len);
    Py_RETURN_NONE;
}

/* An event without a duration on any track, at any time. */
PyObject *readings_py_put(PyObject *self, PyObject *args) {
    unsigned int name, category, track;
    long long at;
    double value;
    Py_buffer arguments;
    int counter;
    if (!PyArg_ParseTuple(args, "pIIILdy*", &counter, &name, &category, &track, &at, &value, &arguments)) return NULL;
    Thread *thread = recording(RECORD_EVENTS) ? thread_current_object() : NULL;
    if (thread) {
        Event event = {.ts = at,
                       .name = name,
                       .category = (uint16_t)category,
                       .track = track,
                       .kind = counter ? KIND_COUNTER : KIND_INSTANT};
        if (counter) event.value = value;
        ring_write(thread, &event, arguments.buf, (uint32_t)arguments.len);
    }
    PyBuffer_Release(&arguments);
    Py_RETURN_NONE;
}

/* A span from a time in the past until now, where the calling thread is. */
PyObject *readings_py_past_span(PyObject *self, PyObject *args) {
    unsigned int name, category;
    long long begin;
    if (!PyArg_ParseTuple(args, "IIL", &name, &category, &begin)) return NULL;
    int64_t end = clock_now();
    Thread *thread = recording(RECORD_EVENTS) ? thread_current_object() : NULL;
    if (!thread) Py_RETURN_NONE;
    Open open;
    span_open(thread, thread->stack, &open, name, (uint16_t)category, 0);
    open.ts = begin;
    span_close(thread, &open, end, 0, 0, 0, NULL, 0);
    Py_RETURN_NONE;
}

/* The row of the calling thread, 0 without a session. */
PyObject *readings_py_thread_track(PyObject *self, PyObject *unused) {
    Thread *thread = thread_current_object();
    return PyLong_FromUnsignedLong(thread ? thread->stack->track : 0);
}

void readings_init(void) {
    static const char *const all[SIGNALS] = {"cpu_ns",      "run_queue_ns", "resident_bytes",
                                             "page_faults", "preemptions",  "written_bytes"};
    for (int i = 0; i < SIGNALS; i++) names[i] = strings_intern(all[i], strlen(all[i]));
    signal_category = strings_category("step signal", 11);
    collection_category = strings_category("gc", 2);
    collection_name = strings_intern("garbage collection", 18);
    generation_key = strings_intern("generation", 10);
    collected_key = strings_intern("collected", 9);
    uncollectable_key = strings_intern("uncollectable", 13);
    page_bytes = sysconf(_SC_PAGESIZE);
}
