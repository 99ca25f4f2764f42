/* Rings: one per thread, written by that thread alone, drained by one consumer, in mapped files.
 *
 * A slot is 64 bytes: an event, or 62 bytes of the arguments of the event before it. The writer publishes by a
 * release store of `head`. Each event carries the low bits of its serial number in `step` (step marks keep their
 * step in `dur` meanwhile), and numbers of dropped events are used up: so the consumer sees exactly how many are
 * missing and where, whatever the overflow policy. `produced` is stored last: an event below it was published before or
 * is lost, one that is being written is neither. */
#include "rings/ring.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIN_IDLE_RINGS 2
#define PAGE_SLOTS 64   /* a page of 4096 bytes */
#define BACKED_SLOTS 1024 /* backed by the file system at a time */

static Ring *rings[MAX_RINGS], *idle[MAX_RINGS];
static atomic_uint ring_count;
static uint32_t idle_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char directory[3072];
static uint64_t ring_slots;
static uint32_t max_rings;
static atomic_int session_open;
static atomic_ullong ringless; /* events of threads that have no ring */
static int wake_fd = -1;

static int ring_file(uint32_t index, int flags) {
    char name[32];
    snprintf(name, sizeof name, "ring-%05u", index);
    return session_file(directory, name, O_RDWR | flags);
}

static void ring_remove(uint32_t index) {
    char name[32];
    snprintf(name, sizeof name, "ring-%05u", index);
    session_unlink(directory, name);
}

/* Gives pages of a shared mapping memory where its file cannot be opened any more, as after a change of the user. Fails where
 * the file system is full, and before Linux 5.14. */
static bool populate(void *at, uint64_t bytes) {
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
    return madvise(at, bytes, MADV_POPULATE_WRITE) == 0;
}

static void *map_anonymous(void *at, size_t bytes) {
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
}

/* Gives slots memory before they are touched: a write to a page that a full file system cannot give would end the
 * process. Events that the file has no room for go to private memory, and only a crash loses them. Called in the first round. */
static bool ring_back(Ring *r, uint64_t end) {
    uint64_t from = r->backed, to = (end + BACKED_SLOTS + PAGE_SLOTS - 1) & ~(uint64_t)(PAGE_SLOTS - 1);
    if (to > r->backed_end) to = r->backed_end;
    int fd = r->anonymous ? -1 : ring_file(r->index, 0);
    while (from < to) {
        uint64_t at = from & r->mask, n = to - from < r->mask + 1 - at ? to - from : r->mask + 1 - at;
        bool reserved = fd >= 0        ? file_reserve(fd, HEADER + at * sizeof(Event), n * sizeof(Event))
                        : r->anonymous ? false
                                       : populate(&r->data[at], n * sizeof(Event));
        if (!reserved) {
            /* The process that drains the rings of one that joined sees their files only. */
            if (control_joined() || map_anonymous(&r->data[at], n * sizeof(Event)) == MAP_FAILED) break;
            if (!r->anonymous) count_one(&g_counts.rings_failed);
            r->anonymous = true;
        }
        from += n;
    }
    if (fd >= 0) close(fd);
    r->backed = from >= r->backed_end ? UINT64_MAX : from;
    return end <= r->backed;
}

static Ring *ring_new(uint32_t limit) {
    uint32_t index = atomic_load(&ring_count);
    if (index >= limit || index >= MAX_RINGS) return NULL;
    size_t bytes = HEADER + ring_slots * sizeof(Event);
    int fd = ring_file(index, O_CREAT | O_EXCL);
    bool reserved = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && file_reserve(fd, 0, HEADER);
    void *map = reserved           ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                : control_joined() ? MAP_FAILED
                                   : map_anonymous(NULL, bytes);
    if (!reserved) count_one(&g_counts.rings_failed);
    if (fd >= 0) close(fd);
    if (fd >= 0 && (!reserved || map == MAP_FAILED)) ring_remove(index);
    Ring *r = map == MAP_FAILED ? NULL : calloc(1, sizeof *r);
    if (!r) {
        if (map != MAP_FAILED) munmap(map, bytes);
        return NULL;
    }
    r->anonymous = !reserved;
    r->backed = reserved ? 0 : UINT64_MAX;
    r->backed_end = ring_slots;
    r->header = map;
    r->data = (Event *)((char *)map + HEADER);
    r->mask = ring_slots - 1;
    r->refused_at = r->waited_at = UINT64_MAX;
    r->index = index;
    r->header->version = 1;
    r->header->slots = (uint32_t)ring_slots;
    atomic_thread_fence(memory_order_release); /* who finds the magic finds a ring */
    memcpy(r->header->magic, "SSRING1", 8);
    rings[index] = r;
    atomic_store_explicit(&ring_count, index + 1, memory_order_release);
    return r;
}

/* A ring goes on in a file of another directory, with what was not drained of it. Nothing may be recorded. */
static void ring_move(Ring *r) {
    Header *h = r->header;
    size_t bytes = HEADER + (r->mask + 1) * sizeof(Event);
    int fd = ring_file(r->index, O_CREAT | O_EXCL);
    bool good =
        fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && file_reserve(fd, 0, HEADER) && pwrite(fd, h, HEADER, 0) == HEADER;
    for (uint64_t at = atomic_load(&h->tail); good && at < r->head; at++) {
        off_t to = (off_t)(HEADER + (at & r->mask) * sizeof(Event));
        good = file_reserve(fd, (uint64_t)to, sizeof(Event)) &&
               pwrite(fd, &r->data[at & r->mask], sizeof(Event), to) == sizeof(Event);
    }
    good = good && mmap(h, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    if (good) {
        r->anonymous = false;
        r->backed = r->head & ~(uint64_t)(PAGE_SLOTS - 1);
        r->backed_end = r->backed + r->mask + 1;
    } else {
        count_one(&g_counts.rings_failed);
        r->anonymous = true; /* it stays where it is, in no directory: a crash loses what is in it */
        if (fd >= 0) ring_remove(r->index);
    }
    if (fd >= 0) close(fd);
}

static bool drained_whole(const Ring *r) {
    const Header *h = r->header;
    return atomic_load(&h->tail) == r->head && atomic_load(&h->serial) == r->serial;
}

/* An idle ring, or a new one while there are fewer than `limit`. One is reused when nothing is left in it, so that
 * events keep the identity of who wrote them. Under the lock. */
static Ring *find_ring(uint32_t limit) {
    for (uint32_t i = idle_count; i-- > 0;) {
        Ring *r = idle[i];
        if (atomic_load(&r->trimming) || !drained_whole(r)) continue;
        memmove(&idle[i], &idle[i + 1], (--idle_count - i) * sizeof *idle);
        r->idle = false;
        return r;
    }
    return ring_new(limit);
}

static void assign_ring(Ring *r, uint32_t track, int64_t tid) {
    static uint64_t assigned; /* under the lock */
    r->header->assigned = ++assigned;
    r->header->track = track;
    r->header->tid = tid;
    r->header->alive = 1;
    if (r->clean) {
        r->clean = false;
        r->backed = r->head & ~(uint64_t)(PAGE_SLOTS - 1);
        r->backed_end = r->backed + r->mask + 1;
    }
    r->last_ts = clock_now(); /* events lost from now on are those of this thread */
}

static void release_ring(Ring *r) {
    if (!r) return;
    r->header->alive = 0;
    r->idle = true;
    idle[idle_count++] = r;
}

/* After a burst: memory of rings that nobody uses goes back to the system, but for a few. That takes a while, so
 * threads that need a ring do not wait for it. */
void rings_trim(void) {
    for (;;) {
        Ring *r = NULL;
        pthread_mutex_lock(&lock);
        for (uint32_t i = 0; i + MIN_IDLE_RINGS < idle_count && !r; i++)
            if (!idle[i]->clean && !idle[i]->anonymous && drained_whole(idle[i])) r = idle[i];
        if (r) r->clean = true, atomic_store(&r->trimming, true);
        pthread_mutex_unlock(&lock);
        if (!r) return;
        /* Where the file system cannot give it back, the memory is merely asked for again. */
        madvise(r->data, (r->mask + 1) * sizeof(Event), MADV_REMOVE);
        atomic_store(&r->trimming, false);
    }
}

void ring_refuse(void) {
    if (!atomic_load_explicit(&session_open, memory_order_relaxed)) return;
    if (control_joined()) control_refuse();
    else count_one(&ringless);
}

bool rings_open(void) { return atomic_load_explicit(&session_open, memory_order_acquire); }

Ring *ring_lend(uint32_t track, int64_t tid) {
    pthread_mutex_lock(&lock);
    Ring *r = rings_open() ? find_ring(MAX_RINGS) : NULL; /* this process may have detached meanwhile */
    if (r) assign_ring(r, track, tid);
    pthread_mutex_unlock(&lock);
    return r;
}

void ring_return(Ring *ring, Ring *marks) {
    pthread_mutex_lock(&lock);
    release_ring(ring), release_ring(marks);
    pthread_mutex_unlock(&lock);
}

void ring_wake_consumer(void) {
    uint64_t one = 1;
    if (wake_fd < 0) return;
    /* EAGAIN: the counter is full, so the consumer is awake already. */
    if (write(wake_fd, &one, sizeof one) < 0 && errno != EAGAIN) count_one(&g_counts.lookups_failed);
}

void ring_wake(Ring *r) {
    if (wake_fd < 0) return; /* of a session that was joined: its owner comes by often enough */
    if (atomic_load_explicit(&r->header->signalled, memory_order_relaxed) ||
        atomic_exchange_explicit(&r->header->signalled, 1, memory_order_relaxed))
        return;
    main_thread_yields(true);
    ring_wake_consumer();
}

/* The descriptor is not readable any more, until a ring asks for a drain again. It never waits. */
PyObject *ring_py_clear_wake(PyObject *self, PyObject *unused) {
    uint64_t asked;
    if (wake_fd >= 0 && read(wake_fd, &asked, sizeof asked) < 0 && errno != EAGAIN) count_one(&g_counts.lookups_failed);
    Py_RETURN_NONE;
}

/* Rings in use or yet to be read. Under the lock. */
static uint32_t rings_used(void) {
    uint32_t used = atomic_load(&ring_count);
    for (uint32_t i = 0; i < idle_count; i++) used -= drained_whole(idle[i]);
    return used;
}

/* A full ring is left to the consumer and its thread goes on in another: bursts pass while memory is allowed. */
bool ring_move_on(Thread *thread) {
    pthread_mutex_lock(&lock);
    Ring *old = thread->ring, *fresh = rings_used() < max_rings ? find_ring(max_rings) : NULL;
    if (fresh) {
        assign_ring(fresh, old->header->track, old->header->tid);
        release_ring(old);
        thread->ring = fresh;
    }
    pthread_mutex_unlock(&lock);
    return fresh != NULL;
}

Ring *ring_for_marks(Thread *thread) {
    pthread_mutex_lock(&lock);
    Ring *fresh = find_ring(MAX_RINGS);
    if (fresh) {
        assign_ring(fresh, thread->ring->header->track, thread->ring->header->tid);
        fresh->header->alive = 2; /* no thread of its own */
    }
    pthread_mutex_unlock(&lock);
    return fresh;
}

bool ring_write(Thread *thread, const Event *event, const char *args, uint32_t args_len) {
    Ring *r = thread->ring;
    uint64_t more = (args_len + PAYLOAD - 1) / PAYLOAD;
    if (more > r->mask / 4) {
        more = args_len = 0;
        count_one(&g_counts.arguments_cut);
    }
    bool fits = true;
    if (r->head + 1 + more - r->tail_seen > (r->mask + 1) / 2 || event->kind == KIND_STEP)
        fits = overflow_room(thread, event, 1 + more, &r);
    Header *h = r->header;
    uint64_t serial = r->serial++, end = r->head + 1 + more;
    if (!fits || (end > r->backed && !ring_back(r, end))) {
        atomic_store_explicit(&h->produced, serial + 1, memory_order_release);
        return false;
    }
    atomic_store_explicit(&h->reserve, end, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    Event *slot = &r->data[r->head & r->mask];
    *slot = *event;
    if (event->kind == KIND_STEP) slot->dur = event->step;
    slot->step = (int32_t)serial;
    if (args_len) {
        slot->args_len = args_len;
        for (uint32_t i = 0; i < more; i++) {
            More *m = (More *)&r->data[(r->head + 1 + i) & r->mask];
            uint32_t remaining = args_len - i * PAYLOAD;
            memcpy(m->bytes, args + i * PAYLOAD, remaining < PAYLOAD ? remaining : PAYLOAD);
            m->kind = KIND_MORE, m->zero = 0;
        }
    }
    r->head = end;
    atomic_store_explicit(&h->head, end, memory_order_release);
    atomic_store_explicit(&h->produced, serial + 1, memory_order_release);
    return true;
}

/* The range of events that a drain copies, so that it ends however fast threads write. Rings that were left come first: their threads
 * have gone on in others, and so the events of each thread stay in order. */
uint32_t rings_to_drain(Ring **plan) {
    uint32_t planned = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < idle_count; i++) plan[planned++] = idle[i];
    for (uint32_t i = 0, n = atomic_load(&ring_count); i < n; i++)
        if (!rings[i]->idle) plan[planned++] = rings[i];
    for (uint32_t i = 0; i < planned; i++) {
        Header *h = plan[i]->header;
        atomic_store_explicit(&h->signalled, 0, memory_order_relaxed);
        plan[i]->goal_produced = atomic_load_explicit(&h->produced, memory_order_acquire);
        plan[i]->goal = atomic_load_explicit(&h->head, memory_order_acquire);
    }
    pthread_mutex_unlock(&lock);
    return planned;
}

uint64_t rings_ringless(void) { return atomic_load(&ringless); }

void rings_each(void (*change)(Ring *)) {
    for (uint32_t i = 0, n = atomic_load_explicit(&ring_count, memory_order_acquire); i < n; i++) change(rings[i]);
}

/* Slots that are not free: those that were copied, or those of rings that are in no file, or in part. */
static PyObject *count_slots(bool in_memory) {
    unsigned long long slots = 0;
    for (uint32_t i = 0, n = atomic_load_explicit(&ring_count, memory_order_acquire); i < n; i++) {
        const Header *h = rings[i]->header;
        uint64_t tail = atomic_load(&h->tail); /* first, so that the difference is not negative during a drain */
        if (!in_memory) slots += atomic_load(&h->drained) - tail;
        else if (rings[i]->anonymous) slots += atomic_load(&h->head) - tail;
    }
    return PyLong_FromUnsignedLongLong(slots);
}

PyObject *ring_py_unreleased(PyObject *self, PyObject *unused) { return count_slots(false); }
PyObject *ring_py_private(PyObject *self, PyObject *unused) { return count_slots(true); }

void ring_add_counts(const Ring *r, const _Atomic uint64_t *produced, RingCounts *sums) {
    /* In this order, so that no difference is negative while the ring is being written and drained. */
    uint64_t lost = atomic_load(&r->lost), serial = atomic_load(&r->cursor_serial);
    uint64_t made = produced ? atomic_load(produced) : serial;
    if (made < serial) made = serial;
    sums->produced += made;
    sums->dropped += lost;
    sums->drained += serial - lost;
    sums->waiting += made - serial;
}

PyObject *ring_py_statistics(PyObject *self, PyObject *unused) {
    RingCounts sums = {0};
    uint32_t n = atomic_load_explicit(&ring_count, memory_order_acquire), alive = 0;
    for (uint32_t i = 0; i < n; i++) {
        ring_add_counts(rings[i], &rings[i]->header->produced, &sums);
        alive += rings[i]->header->alive == 1;
    }
    uint64_t reported = drain_ringless(), without = atomic_load(&ringless);
    return Py_BuildValue("{sIsIsKsKsKsKsK}", "rings", n, "threads", alive, "produced", sums.produced + without, "drained",
                         sums.drained, "dropped", sums.dropped + reported, "waiting", sums.waiting + without - reported,
                         "bytes", (unsigned long long)drain_bytes());
}

static void fork_phase(int phase) {
    fork_lock(&lock, phase);
    strings_fork(phase);
    track_fork(phase);
    stack_fork(phase);
    columns_fork(phase);
}

static void before_fork(void) { fork_phase(FORK_BEFORE), signals_before_fork(); }
static void after_fork_parent(void) { signals_after_fork_parent(), fork_phase(FORK_PARENT); }

/* The child records nothing until it opens a session of its own, and lets go of its parent's memory. */
static void after_fork_child(void) {
    control_unmap();
    wants_after_fork();
    atomic_store(&session_open, 0);
    fork_phase(FORK_CHILD);
    for (uint32_t i = 0, n = atomic_load(&ring_count); i < n; i++) {
        munmap(rings[i]->header, HEADER + (rings[i]->mask + 1) * sizeof(Event));
        free(rings[i]);
    }
    thread_after_fork();
    atomic_store(&ring_count, 0);
    idle_count = 0;
    atomic_store(&ringless, 0);
    drain_after_fork();
    if (wake_fd >= 0) close(wake_fd);
    wake_fd = -1;
    memset(&g_counts, 0, sizeof g_counts);
    context_after_fork();
    step_after_fork();
    signals_after_fork();
}

/* Nothing is left to do after the handlers below, which also know of forks that Python does not hear of. */
int ring_init(void) {
    if (!thread_init() || pthread_atfork(before_fork, after_fork_parent, after_fork_child)) {
        PyErr_SetString(PyExc_RuntimeError, "no thread key is left in this process");
        return -1;
    }
    return 0;
}

static bool set_directory(const char *path) {
    bool fits = strlen(path) < sizeof directory;
    if (fits) strcpy(directory, path);
    return fits;
}

static bool open_files(void) {
    return strings_open(directory) == 0 && track_open(directory) == 0 && stack_open(directory) == 0;
}
static void close_files(void) { strings_close(), track_close(), stack_close(); }

/* Opens a session, or a part of another process's if that is given: its directory. */
static bool session_begin(const char *path, unsigned long slots, unsigned int rings_wanted, const char *policy,
                          double block_seconds, const char *session) {
    if (atomic_load(&session_open)) return PyErr_SetString(PyExc_RuntimeError, "a session is open already"), false;
    if (slots < 64 || slots > 1 << 24 || (slots & (slots - 1)))
        return PyErr_Format(PyExc_ValueError, "slots must be a power of two from 64 to 16777216, got %lu", slots), false;
    if (!set_directory(path) || (session && strlen(session) >= sizeof directory))
        return PyErr_SetString(PyExc_ValueError, "directory name is too long"), false;
    if (!overflow_set(policy, block_seconds))
        return PyErr_Format(PyExc_ValueError, "overflow must be 'drop_newest', 'drop_oldest' or 'block', got '%s'", policy),
               false;
    if ((session && control_join(session) < 0) || !open_files() ||
        (!session && (wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0)) {
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, session ? session : directory);
        close_files();
        if (session) control_unmap();
        return false;
    }
    if (!session) control_make(directory);
    ring_slots = slots;
    max_rings = rings_wanted;
    atomic_store_explicit(&session_open, 1, memory_order_release);
    return true;
}

PyObject *ring_py_open(PyObject *self, PyObject *args) {
    PyObject *path, *session = NULL;
    unsigned long slots;
    unsigned int rings_wanted;
    const char *policy;
    double block_seconds = 0;
    if (!PyArg_ParseTuple(args, "O&kIs|dO&", PyUnicode_FSConverter, &path, &slots, &rings_wanted, &policy, &block_seconds,
                          PyUnicode_FSConverter, &session))
        return NULL;
    bool begun = session_begin(PyBytes_AS_STRING(path), slots, rings_wanted, policy, block_seconds,
                               session ? PyBytes_AS_STRING(session) : NULL);
    Py_DECREF(path);
    Py_XDECREF(session);
    return begun ? PyLong_FromLong(wake_fd) : NULL;
}

/* False if a thread has recorded: what it has is the session's, and so are its ring and stack. */
PyObject *ring_py_detach(PyObject *self, PyObject *unused) {
    pthread_mutex_lock(&lock);
    bool detached = control_joined() && atomic_load(&ring_count) == 0;
    if (detached) atomic_store(&session_open, 0);
    pthread_mutex_unlock(&lock);
    if (detached) {
        control_unmap();
        close_files();
    }
    return PyBool_FromLong(detached);
}

/* The session's files may be removed from now on, while nothing is recorded: only the memory goes on. False if a process has
 * joined since `joins()` returned that number. */
PyObject *ring_py_detach_files(PyObject *self, PyObject *joins) {
    unsigned long known = PyLong_AsUnsignedLong(joins);
    if (PyErr_Occurred()) return NULL;
    if (!rings_open() || control_joined() || !control_detach((unsigned)known)) Py_RETURN_FALSE;
    close_files();
    Py_RETURN_TRUE;
}

/* After that: what there is goes on in files of another directory. */
PyObject *ring_py_make_files(PyObject *self, PyObject *path_object) {
    PyObject *path;
    if (!PyUnicode_FSConverter(path_object, &path)) return NULL;
    bool fits = set_directory(PyBytes_AS_STRING(path));
    Py_DECREF(path);
    if (!fits) return PyErr_Format(PyExc_ValueError, "directory name is too long");
    if (strings_open(directory) < 0 || track_open(directory) < 0 || stack_move(directory) < 0) {
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, directory);
        close_files();
        return NULL;
    }
    control_make(directory);
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0, n = atomic_load(&ring_count); i < n; i++) ring_move(rings[i]);
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

PyObject *ring_py_close(PyObject *self, PyObject *unused) {
    /* Files are closed, memory stays mapped: threads may be writing to it at this moment. */
    control_close();
    overflow_close();
    strings_close(), track_close();
    Py_RETURN_NONE;
}
