/* Rings and stacks of another process that joined this one's session: read here, written there.
 *
 * Nothing of it is believed. Of a ring only the header is mapped; its slots are copied, checked, and then drained like
 * those of our own rings, so that nothing changes after it was checked. A ring that contradicts itself is let go. One
 * consumer, as for our own rings. */
#include "rings/ring.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STACKS_CHUNK (64 * sizeof(Stack))
#define MOST_STACKS (1u << 16)

typedef struct {
    Ring ring;       /* for the drain: its header is `copy` */
    Header copy;     /* what was checked, and how far we are */
    Header *shared;
    uint64_t assigned;
    uint32_t index;
    bool planned, broken;
} Attached;

typedef struct {
    PyObject_HEAD
    char directory[3072];
    Attached **rings;
    uint32_t count;
    unsigned int broken;
    Event *slots;            /* where slots are copied to, for one ring after the other */
    size_t slots_room;
    Stack *stacks;
    size_t stacks_bytes;
    unsigned long long bytes;
} Process;

static int open_file(const Process *p, const char *name, struct stat *about) {
    int fd = session_file(p->directory, name, O_RDWR | O_NONBLOCK);
    if (fd >= 0 && (fstat(fd, about) < 0 || !S_ISREG(about->st_mode))) close(fd), fd = -1, errno = EINVAL;
    return fd;
}

static int open_ring(const Process *p, uint32_t index, struct stat *about) {
    char name[32];
    snprintf(name, sizeof name, "ring-%05u", index);
    return open_file(p, name, about);
}

/* Takes the next ring if there is one: false when there is none, or it is being made. */
static bool attach_next(Process *p) {
    struct stat about;
    Attached **longer = NULL, *a = NULL;
    int fd = p->count < MAX_RINGS ? open_ring(p, p->count, &about) : -1;
    if (fd < 0) return false;
    Header *shared = about.st_size < HEADER ? MAP_FAILED : mmap(NULL, HEADER, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    static const char none[8];
    if (shared != MAP_FAILED && memcmp(shared->magic, none, sizeof none) != 0) {
        longer = realloc(p->rings, (p->count + 1) * sizeof *p->rings);
        if (longer) p->rings = longer;
        a = longer ? calloc(1, sizeof *a) : NULL;
    }
    if (!a) {
        if (shared != MAP_FAILED) munmap(shared, HEADER);
        return false;
    }
    atomic_thread_fence(memory_order_acquire);
    uint32_t slots = shared->slots;
    bool good = !memcmp(shared->magic, "SSRING1", 8) && shared->version == 1 && slots >= 64 && slots <= 1 << 24 &&
                !(slots & (slots - 1)) && (uint64_t)about.st_size >= HEADER + (uint64_t)slots * sizeof(Event);
    a->shared = shared;
    a->index = a->ring.index = p->count;
    a->copy.slots = slots;
    a->ring.header = &a->copy;
    a->ring.mask = good ? slots - 1 : 0;
    a->ring.foreign = true; /* whatever the policy: what was overwritten while it was copied is seen as lost */
    a->broken = !good;
    p->broken += !good;
    p->rings[p->count++] = a;
    return true;
}

/* Results of fetching the slots of a ring. LATER: this process is out of descriptors or memory for the moment.
 * GONE: somebody has removed the file. */
typedef enum { FETCHED, LATER, REMOVED, CONTRADICTED } Fetched;

static Fetched copy_slots(Process *p, const Attached *a, uint64_t from, uint64_t to) {
    struct stat about;
    size_t room = (a->ring.mask + 1) * sizeof(Event);
    if (room > p->slots_room) {
        if (p->slots) munmap(p->slots, p->slots_room);
        p->slots = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        p->slots_room = p->slots == MAP_FAILED ? 0 : room;
        if (!p->slots_room) return p->slots = NULL, LATER;
    }
    int fd = open_ring(p, a->index, &about);
    if (fd < 0) return errno == ENOENT ? REMOVED : errno == EMFILE || errno == ENFILE || errno == ENOMEM ? LATER : CONTRADICTED;
    bool good = true;
    while (good && from < to) {
        uint64_t at = from & a->ring.mask, n = to - from < a->ring.mask + 1 - at ? to - from : a->ring.mask + 1 - at;
        ssize_t size = (ssize_t)(n * sizeof(Event));
        good = pread(fd, &p->slots[at], (size_t)size, (off_t)(HEADER + at * sizeof(Event))) == size;
        from += n;
    }
    close(fd);
    return good ? FETCHED : CONTRADICTED;
}

/* Whether these slots, which are our copy, are what a recorder writes. */
static bool check_slots(const Process *p, const Attached *a, uint64_t from, uint64_t to, uint64_t expected, uint64_t produced) {
    int64_t now = clock_now();
    for (uint64_t at = from; at < to;) {
        const Event *e = &p->slots[at & a->ring.mask];
        uint64_t more = 0;
        if (e->kind == KIND_MORE) { /* what is left of an event that was overwritten */
            at++;
            continue;
        }
        if (e->args_len && !(e->flags & FLAG_ARG_INLINE)) {
            if (e->args_len > MAX_ARGS_BYTES) return false;
            more = (e->args_len + PAYLOAD - 1) / PAYLOAD;
        }
        uint64_t serial = expected + (uint32_t)((uint32_t)e->step - (uint32_t)expected);
        /* Step marks and gaps are not for other processes to make. */
        if (e->kind == 0 || e->kind >= KIND_STEP || more >= to - at || e->ts < 0 || e->ts > now || e->dur < 0 ||
            e->dur > now - e->ts || serial > produced)
            return false;
        expected = serial + 1;
        at += 1 + more;
    }
    return true;
}

/* Copies what is to be drained of a ring, and checks it. */
static Fetched fetch(Process *p, Attached *a) {
    Header *shared = a->shared, *copy = &a->copy;
    uint64_t tail = a->ring.cursor, serial = atomic_load(&a->ring.cursor_serial), slots = a->ring.mask + 1;
    uint64_t goal = a->ring.goal, from = goal - tail > slots ? goal - slots : tail;
    if (goal < tail || a->ring.goal_produced < serial || a->ring.goal_produced - serial > UINT32_MAX) return CONTRADICTED;
    Fetched copied = from < goal ? copy_slots(p, a, from, goal) : FETCHED;
    if (copied == REMOVED) a->ring.goal = goal = from = tail; /* what was in it counts as lost; its header is mapped still */
    else if (copied != FETCHED) return copied;
    atomic_thread_fence(memory_order_acquire);
    uint64_t reserve = atomic_load(&shared->reserve);
    if (reserve > tail + slots && (reserve - goal > slots || reserve < goal)) {
        /* Overwritten as a whole while it was copied: the next drain finds what came instead. */
        if (reserve < goal || reserve > atomic_load(&shared->head) + slots) return CONTRADICTED;
        reserve = goal + slots;
    }
    atomic_store(&copy->reserve, reserve);
    if (reserve > from + slots) from = reserve - slots;
    a->ring.data = p->slots;
    copy->track = shared->track;
    return check_slots(p, a, from, goal, serial, atomic_load(&shared->produced)) ? FETCHED : CONTRADICTED;
}

static int by_assignment(const void *left, const void *right) {
    uint64_t a = (*(Attached *const *)left)->assigned, b = (*(Attached *const *)right)->assigned;
    return (a > b) - (a < b);
}

/* Gives the other process the slots that were marked. */
static void release(Attached *a) {
    atomic_store(&a->shared->serial, a->ring.marked_serial);
    atomic_store(&a->shared->tail, a->ring.marked);
}

/* The range of events that the drain copies, so that it ends however fast the other process writes. Rings in the order in which threads
 * were given them, so that the events of each thread stay in order. */
static size_t plan(Process *p) {
    size_t slots = 0;
    bool under_way = false;
    for (uint32_t i = 0; i < p->count; i++) under_way |= p->rings[i]->planned;
    if (!under_way) {
        while (attach_next(p)) {}
        for (uint32_t i = 0; i < p->count; i++) {
            Attached *a = p->rings[i];
            if (a->broken) continue;
            if (!g_late_release) ring_mark(&a->ring), release(a);
            a->ring.goal_produced = atomic_load(&a->shared->produced);
            a->ring.goal = atomic_load(&a->shared->head);
            a->assigned = a->shared->assigned;
            a->planned = a->ring.goal != a->ring.cursor || a->ring.goal_produced != atomic_load(&a->ring.cursor_serial);
        }
        if (p->count) qsort(p->rings, p->count, sizeof *p->rings, by_assignment);
    }
    for (uint32_t i = 0; i < p->count; i++) {
        Attached *a = p->rings[i];
        uint64_t used = a->ring.goal - a->ring.cursor;
        if (a->planned) slots += (used > a->ring.mask ? a->ring.mask + 1 : used) + 4;
    }
    return slots;
}

static PyObject *attached_drain(Process *p, PyObject *args) {
    size_t limit;
    int64_t until;
    if (!drain_arguments(args, &limit, &until)) return NULL;
    size_t slots = plan(p);
    if (slots > limit) slots = limit;
    Out out;
    if (!out_begin(&out, slots ? slots + 1024 : 0, until)) return NULL;
    bool more = false;
    Py_BEGIN_ALLOW_THREADS
    for (uint32_t i = 0; i < p->count && !more; i++) {
        Attached *a = p->rings[i];
        if (!a->planned) continue;
        Fetched fetched = fetch(p, a);
        if (fetched != FETCHED) {
            a->planned = false;
            a->broken = fetched == CONTRADICTED;
            p->broken += a->broken;
            continue;
        }
        more = !drain_ring(&a->ring, &out);
        ring_advance(&a->ring);
        a->planned = more;
    }
    if (!more && p->slots) madvise(p->slots, p->slots_room, MADV_DONTNEED);
    Py_END_ALLOW_THREADS
    p->bytes += (out.count - out.gaps) * sizeof(Event) + out.args_len;
    return out_end(&out, more);
}

static void map_stacks(Process *p) {
    struct stat about;
    int fd = open_file(p, "stacks", &about);
    if (fd < 0) return;
    size_t bytes = (size_t)about.st_size / STACKS_CHUNK * STACKS_CHUNK;
    if (bytes > MOST_STACKS * sizeof(Stack)) bytes = MOST_STACKS * sizeof(Stack);
    if (bytes > p->stacks_bytes) {
        void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) {
            if (p->stacks) munmap(p->stacks, p->stacks_bytes);
            p->stacks = map, p->stacks_bytes = bytes;
        }
    }
    close(fd);
}

static PyObject *attached_open_spans(Process *p, PyObject *until_object) {
    int64_t until = PyLong_AsLongLong(until_object);
    if (PyErr_Occurred()) return NULL;
    map_stacks(p);
    return stacks_open_spans(PyBytes_FromStringAndSize(NULL, 0), p->stacks, p->stacks_bytes / sizeof(Stack), until);
}

static PyObject *attached_statistics(Process *p, PyObject *unused) {
    RingCounts sums = {0};
    unsigned int threads = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const Attached *a = p->rings[i];
        ring_add_counts(&a->ring, a->broken ? NULL : &a->shared->produced, &sums);
        threads += !a->broken && a->shared->alive == 1;
    }
    return Py_BuildValue("{sIsIsIsKsKsKsKsK}", "rings", p->count, "broken", p->broken, "threads", threads, "produced",
                         sums.produced, "drained", sums.drained, "dropped", sums.dropped, "waiting", sums.waiting, "bytes",
                         p->bytes);
}

static PyObject *attached_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *path;
    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return NULL;
    Process *p = (Process *)type->tp_alloc(type, 0);
    if (p && (size_t)PyBytes_GET_SIZE(path) >= sizeof p->directory) {
        PyErr_SetString(PyExc_ValueError, "directory name is too long");
        Py_CLEAR(p);
    } else if (p) strcpy(p->directory, PyBytes_AS_STRING(path));
    Py_DECREF(path);
    return (PyObject *)p;
}

/* Also in a forked child, where the memory goes and the other process notices nothing. */
static void attached_dealloc(Process *p) {
    for (uint32_t i = 0; i < p->count; i++) munmap(p->rings[i]->shared, HEADER), free(p->rings[i]);
    free(p->rings);
    if (p->slots) munmap(p->slots, p->slots_room);
    if (p->stacks) munmap(p->stacks, p->stacks_bytes);
    Py_TYPE(p)->tp_free((PyObject *)p);
}

static PyObject *attached_mark(Process *p, PyObject *unused) {
    for (uint32_t i = 0; i < p->count; i++) ring_mark(&p->rings[i]->ring);
    Py_RETURN_NONE;
}

static PyObject *attached_release(Process *p, PyObject *unused) {
    for (uint32_t i = 0; i < p->count; i++)
        if (!p->rings[i]->broken) release(p->rings[i]);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"mark", (PyCFunction)attached_mark, METH_NOARGS, NULL},
    {"release", (PyCFunction)attached_release, METH_NOARGS, NULL},
    {"drain", (PyCFunction)attached_drain, METH_VARARGS, NULL},
    {"open_spans", (PyCFunction)attached_open_spans, METH_O, NULL},
    {"statistics", (PyCFunction)attached_statistics, METH_NOARGS, NULL},
    {NULL},
};

PyTypeObject AttachedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.runtime._core.Attached",
    .tp_basicsize = sizeof(Process),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = attached_new,
    .tp_dealloc = (destructor)attached_dealloc,
    .tp_methods = methods,
};
