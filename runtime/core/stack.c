/* Stacks of open spans: parents, exact self time, and what recovery finds of spans that never ended.
 *
 * A stack belongs to one thread or one task and is changed by its owner only; the exceptions are a frame that
 * another thread marks dead, and the count of spans without a frame that others left. Stacks live in pages of a
 * mapped file and are reused, never unmapped: a span that outlives its stack finds other ids there and leaves them
 * alone. In a forked child the parent's pages are replaced by empty ones, without a track: no stack at all. */
#include "core.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK 64          /* stacks mapped at a time */
#define MAX_CHUNKS 1024

static Stack *chunks[MAX_CHUNKS];
static atomic_uint total;
static Stack *spare[CHUNK * MAX_CHUNKS];
static uint32_t spares;
static int file = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int stack_open(const char *directory) {
    char path[4096];
    snprintf(path, sizeof path, "%s/stacks", directory);
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return file < 0 ? -1 : 0;
}

void stack_close(void) {
    if (file >= 0) close(file);
    file = -1;
}

static Stack *map(int fd, off_t at, void *where) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    return mmap(where, CHUNK * sizeof(Stack), PROT_READ | PROT_WRITE, flags | (where ? MAP_FIXED : 0), fd, at);
}

void stack_fork(int phase) {
    fork_lock(&lock, phase);
    if (phase != FORK_CHILD) return;
    stack_close();
    /* Span objects and contexts may still point at the parent's stacks, which are not the child's to change. */
    for (uint32_t i = 0; i * CHUNK < atomic_load(&total); i++) map(-1, 0, chunks[i]);
    memset(chunks, 0, sizeof chunks);
    atomic_store(&total, 0);
    spares = 0;
}

static bool map_chunk(void) {
    uint32_t n = atomic_load_explicit(&total, memory_order_relaxed);
    if (n / CHUNK >= MAX_CHUNKS) return false;
    off_t at = (off_t)(n * sizeof(Stack));
    bool reserved = file >= 0 && file_reserve(file, (uint64_t)at, CHUNK * sizeof(Stack)) &&
                    ftruncate(file, at + (off_t)(CHUNK * sizeof(Stack))) == 0;
    if (!reserved) count_one(&g_counts.rings_failed); /* in private memory: a crash loses what is open there */
    if (!reserved && control_joined()) return false;  /* and the process that drains could not see it */
    Stack *chunk = map(reserved ? file : -1, reserved ? at : 0, NULL);
    if (chunk == MAP_FAILED) return false;
    chunks[n / CHUNK] = chunk;
    for (uint32_t i = CHUNK; i-- > 0;) spare[spares++] = &chunk[i];
    atomic_store_explicit(&total, n + CHUNK, memory_order_release);
    return true;
}

Stack *stack_new(Thread *owner, uint32_t track) {
    pthread_mutex_lock(&lock);
    Stack *s = spares || map_chunk() ? spare[--spares] : NULL;
    pthread_mutex_unlock(&lock);
    if (!s) return count_one(&g_counts.rings_failed), NULL;
    atomic_fetch_add_explicit(&s->pushes, 1, memory_order_relaxed);
    atomic_store_explicit(&s->depth, 0, memory_order_release);
    atomic_store_explicit(&s->gone, 0, memory_order_relaxed);
    stack_hang(s, (Parent){0});
    atomic_store_explicit(&s->owner, owner->serial, memory_order_relaxed);
    s->track = track;
    atomic_store_explicit(&s->used, 1, memory_order_release);
    return s;
}

/* Another thread may leave a span of this stack. */
static uint32_t flags_of(const Frame *f) { return __atomic_load_n(&f->flags, __ATOMIC_RELAXED); }

void stack_free(Stack *s) {
    if (!s->track) return; /* of the process that this one was forked from */
    uint32_t depth = atomic_load_explicit(&s->depth, memory_order_relaxed);
    for (uint32_t i = 0; i < depth && i < STACK_FRAMES; i++)
        if (!(flags_of(&s->frames[i]) & FRAME_DEAD)) count_one(&g_counts.spans_abandoned);
    pthread_mutex_lock(&lock);
    atomic_store_explicit(&s->depth, 0, memory_order_release);
    atomic_store_explicit(&s->used, 0, memory_order_relaxed);
    atomic_store_explicit(&s->owner, 0, memory_order_relaxed);
    spare[spares++] = s;
    pthread_mutex_unlock(&lock);
}

/* The depth, without what other threads have left at the top. For the owner. */
static uint32_t settle(Stack *s) {
    uint32_t depth = atomic_load_explicit(&s->depth, memory_order_relaxed);
    if (depth > STACK_FRAMES && atomic_load_explicit(&s->gone, memory_order_relaxed)) {
        uint64_t gone = atomic_exchange_explicit(&s->gone, 0, memory_order_relaxed);
        depth -= gone < depth - STACK_FRAMES ? (uint32_t)gone : depth - STACK_FRAMES;
    }
    while (depth > 0 && depth <= STACK_FRAMES && flags_of(&s->frames[depth - 1]) & FRAME_DEAD) depth--;
    return depth;
}

void span_open(Thread *thread, Stack *s, Open *open, uint32_t name, uint16_t category, uint16_t frame_flags) {
    uint32_t depth = settle(s);
    uint32_t kept = depth < STACK_FRAMES ? depth : STACK_FRAMES;
    open->stack = s;
    open->id = thread->next_id++;
    open->parent = kept ? s->frames[kept - 1].id : s->parent;
    open->depth = depth;
    open->name = name;
    open->track = s->track;
    open->category = category;
    if (depth < STACK_FRAMES) {
        Frame *f = &s->frames[depth];
        atomic_store_explicit(&s->pushes, atomic_load_explicit(&s->pushes, memory_order_relaxed) + 1, memory_order_release);
        atomic_thread_fence(memory_order_release);
        f->child = 0;
        f->id = open->id;
        f->name = name;
        f->category = category;
        f->flags = frame_flags;
        f->ts = open->ts = clock_now();
    } else {
        count_one(&g_counts.deep_spans);
        open->ts = clock_now();
    }
    atomic_store_explicit(&s->depth, depth + 1, memory_order_release);
}

bool stack_in_use(Stack *s) { return settle(s) > 0; }

/* How many frames there are up to the topmost that may be a parent. */
static uint32_t parents(const Stack *s) {
    uint32_t depth = atomic_load_explicit(&s->depth, memory_order_acquire);
    if (depth > STACK_FRAMES) depth = STACK_FRAMES;
    while (depth > 0 && flags_of(&s->frames[depth - 1]) & (FRAME_DEAD | FRAME_SUSPENDED)) depth--;
    return depth;
}

bool stack_has_parent(const Stack *s) { return parents(s) > 0; }

Parent stack_parent(const Stack *s) {
    uint32_t depth = parents(s);
    return depth ? (Parent){s->frames[depth - 1].id, s->track} : (Parent){s->parent, s->parent_track};
}

/* Pops the top frame, gives its time to the frame below, and drops dead frames that come to the top. */
static void pop(Stack *s, uint32_t depth, int64_t dur) {
    while (depth > 0 && depth <= STACK_FRAMES && flags_of(&s->frames[depth - 1]) & FRAME_DEAD) depth--;
    if (depth > 0 && depth <= STACK_FRAMES) s->frames[depth - 1].child += dur;
    atomic_store_explicit(&s->depth, depth, memory_order_release);
}

/* Index of the frame with this id, or STACK_FRAMES. */
static uint32_t find(const Stack *s, uint64_t id) {
    uint32_t depth = atomic_load_explicit(&s->depth, memory_order_acquire);
    for (uint32_t i = depth < STACK_FRAMES ? depth : STACK_FRAMES; i-- > 0;)
        if (s->frames[i].id == id) return i;
    return STACK_FRAMES;
}

void span_close(Thread *thread, const Open *open, int64_t end, uint8_t flags, uint32_t inline_key, uint32_t inline_value,
                const char *args, uint32_t args_len) {
    Stack *s = open->stack;
    if (!s->track) return; /* opened before this process was forked: it is its parent's */
    int64_t dur = end - open->ts, child = 0;
    uint32_t depth = atomic_load_explicit(&s->depth, memory_order_relaxed);
    bool mine = stack_owner(s) == thread->serial;
    bool kept = open->depth < STACK_FRAMES;
    bool top = mine && depth == open->depth + 1 && (!kept || s->frames[open->depth].id == open->id);
    uint32_t at = top ? open->depth : STACK_FRAMES;
    if (!top) {
        at = find(s, open->id);
        flags |= FLAG_ASYNC;
    }
    if (at < STACK_FRAMES) child = s->frames[at].child;
    Event event = {.ts = open->ts, .dur = dur, .self = dur > child ? dur - child : 0, .id = open->id, .parent = open->parent,
                   .name = open->name, .track = open->track, .category = open->category, .kind = KIND_SPAN, .flags = flags};
    if (inline_key) {
        event.flags |= FLAG_ARG_INLINE;
        event.args_at = inline_key;
        event.args_len = inline_value;
    }
    /* Recorded before it is popped: whoever looks in between sees the span twice, never not at all. */
    ring_write(thread, &event, args, args_len);
    if (top) pop(s, open->depth, dur);
    else if (at < STACK_FRAMES) {
        __atomic_fetch_or(&s->frames[at].flags, FRAME_DEAD, __ATOMIC_RELAXED);
    } else if (!kept && mine && depth > STACK_FRAMES) {
        atomic_store_explicit(&s->depth, depth - 1, memory_order_release);
    } else if (!kept && !mine) {
        atomic_fetch_add_explicit(&s->gone, 1, memory_order_relaxed);
    }
}

void span_abandon(const Open *open) {
    Stack *s = open->stack;
    uint32_t at = find(s, open->id);
    count_one(&g_counts.spans_abandoned);
    if (at < STACK_FRAMES) __atomic_fetch_or(&s->frames[at].flags, FRAME_DEAD, __ATOMIC_RELAXED);
    else if (open->depth >= STACK_FRAMES) atomic_fetch_add_explicit(&s->gone, 1, memory_order_relaxed);
}

static uint32_t copy_stable(const Stack *s, Frame *frames) {
    for (int tries = 0; tries < 1000; tries++) {
        uint64_t before = atomic_load_explicit(&s->pushes, memory_order_acquire);
        uint32_t depth = atomic_load_explicit(&s->depth, memory_order_acquire);
        if (depth > STACK_FRAMES) depth = STACK_FRAMES;
        memcpy(frames, s->frames, depth * sizeof *frames);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&s->pushes, memory_order_relaxed) == before) return depth;
    }
    return 0; /* so busy that its spans end within the reading */
}

uint32_t stack_open_spans(const Stack *s, int64_t now, Event *events) {
    if (!atomic_load_explicit(&s->used, memory_order_acquire)) return 0;
    Frame frames[STACK_FRAMES];
    uint32_t depth = copy_stable(s, frames), count = 0;
    for (uint32_t d = 0; d < depth; d++) {
        const Frame *f = &frames[d];
        if (f->flags & FRAME_DEAD || f->ts > now) continue;
        int64_t running = f->child + (d + 1 < depth && frames[d + 1].ts < now ? now - frames[d + 1].ts : 0);
        events[count++] = (Event){.ts = f->ts, .dur = now - f->ts, .self = now - f->ts > running ? now - f->ts - running : 0,
                                  .id = f->id, .parent = d ? frames[d - 1].id : s->parent, .name = f->name, .track = s->track,
                                  .step = -1, .category = f->category, .kind = KIND_SPAN, .flags = FLAG_OPEN};
    }
    return count;
}

PyObject *stack_py_open_spans(PyObject *self, PyObject *unused) {
    int64_t now = clock_now();
    PyObject *all = PyByteArray_FromStringAndSize(NULL, 0);
    Event events[STACK_FRAMES];
    for (uint32_t i = 0, n = atomic_load_explicit(&total, memory_order_acquire); all && i < n; i++) {
        uint32_t count = stack_open_spans(&chunks[i / CHUNK][i % CHUNK], now, events);
        Py_ssize_t size = PyByteArray_GET_SIZE(all);
        if (count && PyByteArray_Resize(all, size + (Py_ssize_t)(count * sizeof *events)) < 0) Py_CLEAR(all);
        else if (count) memcpy(PyByteArray_AS_STRING(all) + size, events, count * sizeof *events);
    }
    PyObject *bytes = all ? PyBytes_FromStringAndSize(PyByteArray_AS_STRING(all), PyByteArray_GET_SIZE(all)) : NULL;
    Py_XDECREF(all);
    return bytes;
}
