/* The table of tracks: append-only, ids for ever, chunks never move. */
#include "core.h"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define CHUNK 1024
#define LEASED_NUMBERS (1 << 30) /* from here on, as the system numbers threads from below */
#define MAX_NAMED_TASKS (1u << 14)
#define BUCKETS 1024

static Track *chunks[MAX_TRACKS / CHUNK];
static const Track nowhere = {0};
static atomic_uint count;
static uint32_t process, process_name;
static bool name_fixed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;

const Track *track_get(uint32_t id) {
    if (id == 0 || id > atomic_load_explicit(&count, memory_order_acquire)) return &nowhere;
    return &chunks[(id - 1) / CHUNK][(id - 1) % CHUNK];
}

static uint32_t add(uint32_t kind, int64_t pid, int64_t tid, uint32_t name, uint32_t parent) {
    uint32_t n = atomic_load_explicit(&count, memory_order_relaxed);
    if (n < MAX_TRACKS && !chunks[n / CHUNK]) chunks[n / CHUNK] = calloc(CHUNK, sizeof(Track));
    if (n < MAX_TRACKS && chunks[n / CHUNK]) {
        Track *t = &chunks[n / CHUNK][n % CHUNK];
        *t = (Track){pid, tid, kind, parent, name, n + 1};
        session_append(&file, t, sizeof *t);
        atomic_store_explicit(&count, ++n, memory_order_release);
    } else count_one(&g_counts.strings_full);
    return n;
}

uint32_t track_new(uint32_t kind, int64_t pid, int64_t tid, uint32_t name, uint32_t parent) {
    pthread_mutex_lock(&lock);
    uint32_t id = add(kind, pid, tid, name, parent);
    pthread_mutex_unlock(&lock);
    return id;
}

/* Tracks that nobody uses any more, in lists by name and parent: a server makes millions of tasks, of few names, some
 * hundred at a time. One that is leased is IN_USE, and in no list: when the table is full, several share the last, and the
 * first of them to end releases it. */
#define IN_USE UINT32_MAX
static uint32_t vacant[BUCKETS], *next_vacant, leased;

static uint32_t *bucket(uint32_t name, uint32_t parent) { return &vacant[(name * 31 + parent) % BUCKETS]; }

static uint32_t reuse_vacant(uint32_t name, uint32_t parent, uint32_t except) {
    if (!next_vacant && !(next_vacant = calloc(MAX_TRACKS + 1, sizeof *next_vacant))) return 0;
    for (uint32_t *at = bucket(name, parent), id; (id = *at); at = &next_vacant[id]) {
        const Track *t = track_get(id);
        if (t->name != name || t->parent != parent || id == except) continue;
        *at = next_vacant[id];
        return id;
    }
    return 0;
}

uint32_t track_lease(uint32_t kind, uint32_t name, uint32_t parent, uint32_t except) {
    uint32_t any = strings_intern("task", 4);
    pthread_mutex_lock(&lock);
    uint32_t id = reuse_vacant(name, parent, except);
    if (!id && kind == TRACK_TASK && leased >= MAX_NAMED_TASKS) id = reuse_vacant(name = any, parent = process, except);
    bool shared = false;
    if (!id) {
        uint32_t before = atomic_load_explicit(&count, memory_order_relaxed);
        id = add(kind, track_get(parent)->pid, LEASED_NUMBERS + (int64_t)before + 1, name, parent);
        shared = id == before;
        leased++;
    }
    if (next_vacant && !shared) next_vacant[id] = IN_USE;
    pthread_mutex_unlock(&lock);
    return id;
}

void track_release(uint32_t id) {
    const Track *t = track_get(id);
    pthread_mutex_lock(&lock);
    if (next_vacant && next_vacant[id] == IN_USE) {
        uint32_t *first = bucket(t->name, t->parent);
        next_vacant[id] = *first;
        *first = id;
    }
    pthread_mutex_unlock(&lock);
}

uint32_t track_process(void) {
    uint32_t name = strings_intern("process", 7);
    pthread_mutex_lock(&lock);
    if (process_name) name = process_name;
    uint32_t id = process ? process : (process = add(TRACK_PROCESS, getpid(), 0, name, 0));
    pthread_mutex_unlock(&lock);
    return id;
}

static void set_process_name(uint32_t name, bool fixed) {
    pthread_mutex_lock(&lock);
    process_name = name;
    name_fixed = fixed;
    pthread_mutex_unlock(&lock);
}

PyObject *track_py_name_process(PyObject *self, PyObject *args) {
    PyObject *name;
    int fixed;
    if (!PyArg_ParseTuple(args, "Up", &name, &fixed)) return NULL;
    uint32_t text = strings_intern_object(name);
    if (PyErr_Occurred()) return NULL;
    set_process_name(text, fixed);
    Py_RETURN_NONE;
}

/* An attribute of something in a module, if that is loaded; runs no code of the program. */
static PyObject *loaded_attribute(const char *module, const char *object, const char *attribute) {
    PyObject *name = PyUnicode_FromString(module);
    PyObject *found = name ? PyImport_GetModule(name) : NULL;
    PyObject *owner = found ? PyObject_GetAttrString(found, object) : NULL;
    PyObject *value = owner && owner != Py_None ? PyObject_GetAttrString(owner, attribute) : NULL;
    Py_XDECREF(owner);
    Py_XDECREF(found);
    Py_XDECREF(name);
    PyErr_Clear();
    return value;
}

void track_name_process(void) {
    if (process || name_fixed) return;
    /* torch says which worker this is after the fork, and multiprocessing what its name is: so this is asked late. */
    PyObject *number = loaded_attribute("torch.utils.data._utils.worker", "_worker_info", "id");
    PyObject *name = number ? PyUnicode_FromFormat("DataLoader worker %S", number)
                            : loaded_attribute("multiprocessing.process", "_current_process", "_name");
    uint32_t text = name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "MainProcess")
                        ? strings_intern_object(name)
                        : 0;
    if (text) set_process_name(text, false);
    PyErr_Clear(); /* it is shown under the name that it was given when it joined */
    Py_XDECREF(number);
    Py_XDECREF(name);
}

int track_open(const char *directory) {
    int fd = session_file(directory, "tracks", O_WRONLY | O_APPEND | O_CREAT | O_EXCL);
    if (fd < 0) return -1;
    pthread_mutex_lock(&lock);
    file = fd;
    for (uint32_t id = 1; id <= atomic_load(&count); id++) session_append(&file, track_get(id), sizeof(Track));
    pthread_mutex_unlock(&lock);
    return 0;
}

void track_close(void) {
    pthread_mutex_lock(&lock);
    if (file >= 0) close(file);
    file = -1;
    pthread_mutex_unlock(&lock);
}

void track_fork(int phase) {
    fork_lock(&lock, phase);
    if (phase != FORK_CHILD) return;
    track_close();
    process = process_name = 0; /* the child has a pid of its own */
    name_fixed = false;
}

PyObject *track_py_new(PyObject *self, PyObject *args) {
    unsigned int kind, parent;
    long long pid, tid;
    PyObject *name;
    if (!PyArg_ParseTuple(args, "ILLUI", &kind, &pid, &tid, &name, &parent)) return NULL;
    uint32_t text = strings_intern_object(name);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLong(track_new(kind, pid, tid, text, parent));
}

PyObject *track_py_since(PyObject *self, PyObject *args) {
    unsigned long from, most = MAX_TRACKS;
    if (!PyArg_ParseTuple(args, "k|k", &from, &most)) return NULL;
    uint32_t n = atomic_load_explicit(&count, memory_order_acquire);
    PyObject *list = PyList_New(0);
    for (uint32_t id = from ? (uint32_t)from : 1; list && from <= n && id <= n && most--; id++) {
        const Track *t = track_get(id);
        const String *s = strings_get(t->name);
        PyObject *row = Py_BuildValue("(IILLIs#)", id, t->kind, (long long)t->pid, (long long)t->tid, t->parent, s->text,
                                      (Py_ssize_t)s->len);
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}
