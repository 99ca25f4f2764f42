/* Samples of a thread's stack of Python functions, with what the system says of the thread.
 *
 * A thread that asks for the interpreter's lock gets it when its holder lets go of it, and by then the function that the sample
 * should show may have ended. So the sampler asks the main thread, which mostly is the one that steps, to take the sample itself
 * at its next instruction (main_thread.c). Where the main thread runs no Python, the lock is free, and the sampler takes it. */
#include "system/readings.h"
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST_FRAMES 64
#define MOST_DEPTH 512   /* frames of a deep stack, from the innermost */
#define MOST_TEXT 4000  /* bytes of a stack, less than what is kept of an argument: outer frames go first */
#define MOST_OTHERS 64
#define KNOWN 8192      /* functions that are remembered, at most half as many; a power of two */
#define PATIENCE_S 0.002 /* for the main thread to take a sample of itself, once it is reminded */
#define LOOK_S 1        /* between two looks at the page of the session, which another may have replaced, while nothing is recorded */
#define BUSY 10         /* another thread is named that was on a processor for a tenth of the time or more */

typedef struct {
    PyObject *code;     /* NULL: free */
    char *text;         /* `function (file`; NULL: out of memory */
    bool ours, standard;
} Function;
typedef struct {
    const Function *function;
    int line;
} Place;
typedef struct {
    unsigned long ident;
    long tid;
    int64_t cpu;
    char name[64];
} Other;

typedef struct {
    unsigned long ident;
    uint32_t track;
    char state;
    Other busiest;          /* ident 0: none */
} Request;

static Request request;     /* written while nothing is wanted */
static atomic_bool wanted;
static bool sampling;         /* what collects garbage in between may run anything */
static Function known[KNOWN];
static uint32_t known_count;
static PyObject *standard_modules; /* a set of names */
static uint32_t sample_name, stack_key, state_key, other_key;
static uint16_t sample_category;

/* The part of a path that is shown: from the directory of packages on, or from that of Python's library on. */
static const char *short_file(const char *path) {
    const char *found = strstr(path, "site-packages/");
    if (!found) found = strstr(path, "dist-packages/");
    if (!found) found = strstr(path, "/lib/python3");
    return found ? found : path;
}

static void describe(Function *function, PyFrameObject *frame, PyCodeObject *code) {
    PyObject *globals = PyFrame_GetGlobals(frame), *module = PyDict_GetItemString(globals, "__name__"), *top = NULL;
    const char *name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : NULL;
    const char *qualified = PyUnicode_AsUTF8(code->co_qualname), *file = PyUnicode_AsUTF8(code->co_filename);
    if (name) top = PyUnicode_FromStringAndSize(name, (Py_ssize_t)strcspn(name, "."));
    if (top) {
        function->ours = !PyUnicode_CompareWithASCIIString(top, "stepscope");
        function->standard = standard_modules && PySet_Contains(standard_modules, top) > 0;
    }
    file = short_file(file ? file : "?");
    qualified = qualified ? qualified : "?";
    size_t room = strlen(qualified) + strlen(file) + 3;
    if ((function->text = malloc(room))) {
        snprintf(function->text, room, "%s (%s", qualified, file);
        for (char *at = function->text; *at; at++)
            if (*at == ';') *at = ',';
    }
    PyErr_Clear(); /* a name that is no UTF-8 */
    Py_XDECREF(top);
    Py_DECREF(globals);
}

static void forget_functions(void) {
    for (int i = 0; i < KNOWN; i++) {
        PyObject *code = known[i].code;
        free(known[i].text);
        known[i] = (Function){0};
        Py_XDECREF(code);
    }
    known_count = 0;
}

static const Function *function_of(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    uint32_t at = (uint32_t)(((uintptr_t)code >> 4) * 2654435761u) & (KNOWN - 1);
    while (known[at].code && known[at].code != (PyObject *)code) at = (at + 1) & (KNOWN - 1);
    if (known[at].code) Py_DECREF(code);
    else describe(&known[at], frame, code), known[at].code = (PyObject *)code, known_count++; /* which keeps it */
    return &known[at];
}

/* Where the main thread mostly takes samples, at a jump back to a loop's begin, there is no line: the line before it counts. */
static int line_of(PyFrameObject *frame) {
    int line = PyFrame_GetLineNumber(frame);
    if (line >= 0) return line;
    PyCodeObject *code = PyFrame_GetCode(frame);
    for (int at = PyFrame_GetLasti(frame) - 2; line < 0 && at >= 0; at -= 2) line = PyCode_Addr2Line(code, at);
    Py_DECREF(code);
    return line < 0 ? 0 : line;
}

/* The program's frames of a thread, the innermost first: not stepscope's, nor those of Python's library that it called
 * (runtime/observers/code_places.py). */
static int frames_of(PyThreadState *state, Place *places, int most) {
    static Place all[MOST_DEPTH];
    int count = 0, program = 0;
    bool ours = false;
    if (known_count > KNOWN / 2) forget_functions();
    for (PyFrameObject *frame = PyThreadState_GetFrame(state); frame;) {
        if (count < MOST_DEPTH) all[count++] = (Place){function_of(frame), line_of(frame)};
        PyFrameObject *back = count < MOST_DEPTH ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(frame);
        frame = back;
    }
    for (int i = count; i-- > 0;) {
        const Function *function = all[i].function;
        ours = function->ours || (ours && function->standard);
        if (!ours && function->text) all[count - 1 - program++] = all[i]; /* never in front of what is yet to be read */
    }
    if (most > program) most = program;
    memcpy(places, &all[count - program], (size_t)most * sizeof *places);
    return most;
}

static PyThreadState *thread_state(unsigned long ident) {
    PyThreadState *state = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    while (state && state->thread_id != ident) state = PyThreadState_Next(state);
    return state;
}

static int frame_text(char *to, size_t room, const Place *frame) {
    int length = snprintf(to, room, "%s:%d)", frame->function->text, frame->line);
    return length < (int)room ? length : -1;
}

static void put_other(ArgBuffer *buffer, const Other *other) {
    PyThreadState *state = thread_state(other->ident);
    char text[MAX_NAME];
    Place inner;
    int length = snprintf(text, sizeof text, "%s", other->name);
    if (state && frames_of(state, &inner, 1)) {
        int more = snprintf(text + length, sizeof text - (size_t)length, ": ");
        int frame = frame_text(text + length + more, sizeof text - (size_t)(length + more), &inner);
        length = frame < 0 ? length : length + more + frame;
    }
    arg_put_text(buffer, other_key, text, (size_t)length);
}

/* Takes the sample that is wanted, if it still is. With the interpreter's lock, on any thread. */
static void record_sample(void) {
    static char text[MOST_TEXT + 1];
    static Place frames[MOST_FRAMES];
    static ArgBuffer buffer;
    if (sampling || !atomic_exchange(&wanted, false) || !recording(RECORD_EVENTS)) return;
    Request of = request;
    int64_t now = clock_now();
    PyThreadState *state = thread_state(of.ident);
    sampling = true;
    int count = state ? frames_of(state, frames, MOST_FRAMES) : 0;
    size_t at = MOST_TEXT; /* written from its end on: the innermost frame comes last */
    for (int i = 0; i < count; i++) {
        char frame[MAX_NAME];
        int length = frame_text(frame, sizeof frame, &frames[i]);
        if (length < 0) continue;
        if ((size_t)length + 1 > at) break;
        if (at < MOST_TEXT) text[--at] = ';';
        memcpy(text + (at -= (size_t)length), frame, (size_t)length);
    }
    buffer.len = 0;
    arg_put_text(&buffer, stack_key, text + at, MOST_TEXT - at);
    if (of.state) arg_put_text(&buffer, state_key, &of.state, 1);
    if (of.busiest.ident) put_other(&buffer, &of.busiest);
    Thread *thread = at < MOST_TEXT ? thread_current_object() : NULL;
    Event event = {.ts = now, .name = sample_name, .category = sample_category, .track = of.track, .kind = KIND_INSTANT};
    if (thread) ring_write(thread, &event, buffer.bytes, buffer.len);
    sampling = false;
}

static int record_on_main(void *unused) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    record_sample();
    PyErr_Restore(type, value, trace);
    return 0;
}

/* The state of a thread, as R, S or D; 0 if it cannot be had. */
static char state_of(int stat) {
    char text[512], *end;
    ssize_t got = stat < 0 ? -1 : pread(stat, text, sizeof text - 1, 0);
    if (got <= 0) return 0;
    text[got] = 0;
    end = strrchr(text, ')'); /* its name may have any */
    return end && end[1] == ' ' ? end[2] : 0;
}

/* ns that a thread of this process was on processors: the kernel's clock of one thread. */
static int64_t cpu_of(long tid) {
    struct timespec time;
    return clock_gettime((clockid_t)((~(unsigned)tid << 3) | 6), &time) ? 0 : (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int read_others(PyObject *list, Other *others) {
    int count = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list) && count < MOST_OTHERS; i++) {
        const char *name;
        Other *other = &others[count];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "kls", &other->ident, &other->tid, &name)) return -1;
        snprintf(other->name, sizeof other->name, "%s", name);
        other->cpu = cpu_of(other->tid);
        count++;
    }
    return count;
}

/* Waits so long, or until the descriptor is readable: then false. */
static bool rest(int fd, double seconds) {
    struct pollfd stop = {.fd = fd, .events = POLLIN};
    return poll(&stop, 1, (int)(seconds * 1000)) <= 0;
}

PyObject *sampling_py_sample(PyObject *self, PyObject *args) {
    static Other others[MOST_OTHERS]; /* one thread samples */
    static uint32_t number;
    int fd, on_main, samples;
    double seconds;
    long tid;
    unsigned long ident;
    unsigned int track;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "idikkIpO!", &fd, &seconds, &samples, &ident, &tid, &track, &on_main, &PyList_Type, &list))
        return NULL;
    int count = read_others(list, others), stat = -1;
    if (count < 0) return NULL;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", tid);
    bool goes_on = true;
    int64_t before = clock_now();
    PyThreadState *released = PyEval_SaveThread();
    if (ident) stat = open(path, O_RDONLY | O_CLOEXEC);
    for (; goes_on && samples > 0; samples--) {
        /* Without jitter, steps that take as long as a few samples would always be seen in the same places. */
        double jitter = ident ? 2. / 3 + 2. / 3 * fmod(++number * 0.618034, 1) : 1;
        while ((goes_on = rest(fd, seconds * jitter)) && !recording(RECORD_EVENTS)) control_wait_recording(LOOK_S);
        if (!goes_on || !ident) continue;
        /* The main thread was asked at the last turn, and is still where it was, or did not notice. */
        if (atomic_load(&wanted)) {
            remind_main_thread();
            rest(fd, PATIENCE_S);
            PyEval_RestoreThread(released);
            record_sample();
            PyErr_Clear();
            released = PyEval_SaveThread();
        }
        int64_t now = clock_now(), most = (now - before) / BUSY;
        request = (Request){.ident = ident, .track = track, .state = state_of(stat)};
        before = now;
        for (int i = 0; i < count; i++) {
            int64_t cpu = cpu_of(others[i].tid), used = cpu - others[i].cpu;
            others[i].cpu = cpu;
            if (used >= most) most = used, request.busiest = others[i];
        }
        atomic_store(&wanted, true);
        /* A main thread that runs takes the sample at its next instruction, without a switch of threads. */
        if (on_main && request.state == 'R' && call_on_main_thread(record_on_main)) continue;
        PyEval_RestoreThread(released);
        record_sample();
        PyErr_Clear();
        released = PyEval_SaveThread();
    }
    if (stat >= 0) close(stat);
    acquire_gil_soon(released);
    return PyBool_FromLong(goes_on);
}

PyObject *sampling_py_set_standard(PyObject *self, PyObject *names) {
    if (!PyAnySet_Check(names)) return PyErr_Format(PyExc_TypeError, "names of modules must be a set");
    Py_XSETREF(standard_modules, Py_NewRef(names));
    Py_RETURN_NONE;
}

void sampling_init(void) {
    sample_name = strings_intern("stack sample", 12);
    sample_category = strings_category("stack sample", 12);
    stack_key = strings_intern("stack", 5);
    state_key = strings_intern("state", 5);
    other_key = strings_intern("other", 5);
}
