/* Stacks of open spans: parents, exact self time, and what recovery finds of spans that never ended.
 *
 * A stack belongs to one thread or one task and is changed by its owner only; the exceptions are a frame that
 * another thread marks dead, with the lock held, and the count of spans without a frame that others left. Stacks live
 * in pages of a mapped file and are reused, never unmapped: a span that outlives its stack finds other ids there and
 * leaves them alone. In a forked child the parent's pages are replaced by empty ones, without a track: no stack at all. */
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
    file = session_file(directory, "stacks", O_RDWR | O_CREAT | O_EXCL);
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

int stack_move(const char *directory) {
    if (stack_open(directory) < 0) return -1;
    pthread_mutex_lock(&lock);
    const size_t bytes = CHUNK * sizeof(Stack);
    for (uint32_t i = 0; i * CHUNK < atomic_load(&total); i++) {
        off_t at = (off_t)(i * bytes);
        bool moved = file_reserve(file, (uint64_t)at, bytes) && pwrite(file, chunks[i], bytes, at) == (ssize_t)bytes &&
                     map(file, at, chunks[i]) != MAP_FAILED;
        if (!moved) count_one(&g_counts.rings_failed); /* it stays where it is: a crash loses what is open there */
    }
    pthread_mutex_unlock(&lock);
    return 0;
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
    atomic_store_explicit(&s->ended_elsewhere, 0, memory_order_relaxed);
    atomic_store_explicit(&s->owner, owner->serial, memory_order_relaxed);
    stack_hang(s, (Parent){0}), s->track = track;
    atomic_store_explicit(&s->used, 1, memory_order_release);
    return s;
}

/* Another thread may leave a span of this stack. */
static uint32_t flags_of(const Frame *f) { return __atomic_load_n(&f->flags, __ATOMIC_RELAXED); }
static bool dead(const Frame *f) { return flags_of(f) & FRAME_DEAD; }

/* How long a span ran until `end`, for self times. Of an early one only the time counts in which recording was on: what was
 * inside of it at other times is not known. */
static int64_t ran_until(int64_t ts, bool early, int64_t end) {
    if (!early) return end - ts;
    int64_t begun = atomic_load_explicit(&g_control.begun, memory_order_relaxed);
    int64_t stopped = atomic_load_explicit(&g_control.stopped, memory_order_relaxed);
    int64_t until = !recording(RECORD_EVENTS) && stopped < end ? stopped : end, from = ts > begun ? ts : begun;
    return until > from ? until - from : 0;
}
static uint8_t period_now(void) { return (uint8_t)atomic_load_explicit(&g_control.periods, memory_order_relaxed); }
static int64_t child_of(const Frame *f) { return flags_of(f) & FRAME_EARLY && f->period != period_now() ? 0 : f->child; }
static int64_t frame_ran(const Frame *f, int64_t end) { return ran_until(f->ts, flags_of(f) & FRAME_EARLY, end); }
static void add_child(Frame *f, int64_t dur) {
    f->child = child_of(f) + dur;
    if (flags_of(f) & FRAME_EARLY) f->period = period_now();
}

static uint32_t set_depth(Stack *s, uint32_t depth) {
    atomic_store_explicit(&s->depth, depth, memory_order_release);
    return depth;
}

void stack_free(Stack *s) {
    if (!s->track) return; /* of the process that this one was forked from */
    for (uint32_t i = atomic_load_explicit(&s->depth, memory_order_relaxed) % DEEP; i-- > 0;)
        if (!dead(&s->frames[i])) count_one(&g_counts.spans_abandoned);
    pthread_mutex_lock(&lock);
    set_depth(s, 0);
    atomic_store_explicit(&s->used, 0, memory_order_relaxed);
    atomic_store_explicit(&s->owner, 0, memory_order_relaxed);
    spare[spares++] = s;
    pthread_mutex_unlock(&lock);
}

/* The depth, without what other threads have left at the top. For the owner. */
static uint32_t current_depth(Stack *s) {
    uint32_t was = atomic_load_explicit(&s->depth, memory_order_relaxed), depth = was;
    if (depth >= DEEP && atomic_load_explicit(&s->ended_elsewhere, memory_order_relaxed)) {
        uint64_t ended_elsewhere = atomic_exchange_explicit(&s->ended_elsewhere, 0, memory_order_relaxed);
        depth -= (ended_elsewhere < depth / DEEP ? (uint32_t)ended_elsewhere : depth / DEEP) * DEEP;
    }
    while (depth % DEEP && dead(&s->frames[depth % DEEP - 1])) depth--;
    return depth == was ? depth : set_depth(s, depth);
}

static inline void changing(Stack *s) { /* readers that began before copy again */
    atomic_store_explicit(&s->pushes, atomic_load_explicit(&s->pushes, memory_order_relaxed) + 1, memory_order_release);
    atomic_thread_fence(memory_order_release);
}

/* Takes the dead frames out. Whenever the process is killed, and for readers between two changes, each open span is
 * whole in one frame or in two: a frame is dead while it is overwritten, and what was copied dies after the copy lives. */
static uint32_t __attribute__((noinline)) make_room(Stack *s, uint32_t depth) {
    uint32_t framed = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < depth % DEEP; i++) {
        Frame *from = &s->frames[i], *to = &s->frames[framed];
        uint8_t flags = (uint8_t)flags_of(from);
        if (flags & FRAME_DEAD || framed++ == i) continue;
        changing(s);
        to->ts = from->ts, to->child = from->child, to->id = from->id, to->name = from->name, to->category = from->category,
        to->period = from->period;
        changing(s);
        __atomic_store_n(&to->flags, flags, __ATOMIC_RELEASE);
        changing(s);
        __atomic_store_n(&from->flags, flags | FRAME_DEAD, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
    return set_depth(s, depth / DEEP * DEEP + framed);
}

void span_open(Thread *thread, Stack *s, Open *open, uint32_t name, uint16_t category, uint8_t frame_flags) {
    uint32_t depth = current_depth(s);
    if (depth % DEEP == STACK_FRAMES) depth = make_room(s, depth);
    uint32_t framed = depth % DEEP;
    *open = (Open){.stack = s,
                   .id = thread->next_id++,
                   .parent = framed ? s->frames[framed - 1].id : s->parent,
                   .name = name,
                   .track = s->track,
                   .category = category,
                   .early = frame_flags & FRAME_EARLY};
    open->ts = open->early ? atomic_load_explicit(&g_control.stopped, memory_order_relaxed) : 0;
    if (framed < STACK_FRAMES) {
        Frame *f = &s->frames[framed];
        changing(s);
        f->child = 0, f->id = open->id, f->name = name, f->category = category, f->flags = frame_flags;
        f->ts = open->ts = open->early ? open->ts : clock_now();
        set_depth(s, depth + 1);
    } else {
        count_one(&g_counts.deep_spans);
        open->level = s->level = depth < DEEP ? 1 : s->level + 1;
        s->deep_ts = open->ts = open->early ? open->ts : clock_now();
        set_depth(s, depth + DEEP);
    }
}

bool stack_in_use(Stack *s) { return current_depth(s) > 0; }

/* How many frames there are up to the topmost that may be a parent. */
static uint32_t parents(const Stack *s) {
    uint32_t depth = atomic_load_explicit(&s->depth, memory_order_acquire) % DEEP;
    while (depth > 0 && flags_of(&s->frames[depth - 1]) & (FRAME_DEAD | FRAME_SUSPENDED)) depth--;
    return depth;
}

bool stack_has_parent(const Stack *s) { return parents(s) > 0; }

Parent stack_parent(const Stack *s) {
    uint32_t depth = parents(s);
    return depth ? (Parent){s->frames[depth - 1].id, s->track} : (Parent){s->parent, s->parent_track};
}

/* Gives time to the topmost frame of `depth` that lives; returns the depth without the dead ones above it. */
static uint32_t add_child_time(Stack *s, uint32_t depth, int64_t dur) {
    while (depth % DEEP && dead(&s->frames[depth % DEEP - 1])) depth--;
    if (depth % DEEP) add_child(&s->frames[depth % DEEP - 1], dur);
    return depth;
}

/* Index of the frame with this id, or STACK_FRAMES. */
static uint32_t find(const Stack *s, uint64_t id) {
    for (uint32_t i = atomic_load_explicit(&s->depth, memory_order_acquire) % DEEP; i-- > 0;)
        if (s->frames[i].id == id) return i;
    return STACK_FRAMES;
}

/* Whether a span is the top, whose frame, if it has one, is not; and how long others were the innermost. Spans that were opened
 * after it must have ended for certain: of spans without a frame, levels show it, as no two that are open have the same. */
static bool __attribute__((noinline)) is_top(const Stack *s, const Open *open, uint32_t depth, int64_t end, int64_t *inner) {
    uint32_t at = find(s, open->id), framed = depth % DEEP, above = at + 1;
    if (at == STACK_FRAMES)
        return depth >= DEEP && open->level && open->level == s->level && (!framed || s->frames[framed - 1].id == open->parent);
    while (above < framed && dead(&s->frames[above])) above++;
    *inner = child_of(&s->frames[at]) + (above < framed ? frame_ran(&s->frames[above], end) : 0);
    return above == framed && (depth < DEEP || open->ts > s->deep_ts);
}

/* Takes off a span that is not the top. The owner adds its time until the next one began to the one around it. */
static void __attribute__((noinline)) remove_frame(Stack *s, const Open *open, bool mine, int64_t self) {
    if (!mine) pthread_mutex_lock(&lock);
    uint32_t at = find(s, open->id), depth = mine ? current_depth(s) : 0;
    if (at < STACK_FRAMES) {
        __atomic_fetch_or(&s->frames[at].flags, FRAME_DEAD, __ATOMIC_RELAXED);
        if (mine) add_child_time(s, at, child_of(&s->frames[at]) + self);
    } else if (open->level && !mine) atomic_fetch_add_explicit(&s->ended_elsewhere, 1, memory_order_relaxed);
    else if (open->level && depth >= DEEP) set_depth(s, depth - DEEP);
    if (!mine) pthread_mutex_unlock(&lock);
}

void span_close(Thread *thread, const Open *open, int64_t end, uint8_t flags, uint32_t inline_key, uint32_t inline_value,
                const char *args, uint32_t args_len) {
    Stack *s = open->stack;
    if (!s->track) return; /* opened before this process was forked: it is its parent's */
    int64_t dur = end - open->ts, ran = ran_until(open->ts, open->early, end), inner = 0;
    if (open->early) flags |= FLAG_CLIPPED;
    uint32_t depth = atomic_load_explicit(&s->depth, memory_order_relaxed);
    bool mine = stack_owner(s) == thread->serial;
    bool top = mine && depth - 1 < STACK_FRAMES && s->frames[depth - 1].id == open->id;
    if (top) inner = child_of(&s->frames[depth - 1]);
    else if (!(top = is_top(s, open, depth = mine ? current_depth(s) : depth, end, &inner) && mine)) flags |= FLAG_ASYNC;
    Event event = {.ts = open->ts,
                   .dur = dur,
                   .self = ran > inner ? ran - inner : 0,
                   .id = open->id,
                   .parent = open->parent,
                   .name = open->name,
                   .track = open->track,
                   .category = open->category,
                   .kind = KIND_SPAN,
                   .flags = flags};
    if (inline_key) event.flags |= FLAG_ARG_INLINE, event.args_at = inline_key, event.args_len = inline_value;
    /* Recorded before it is popped: whoever looks in between sees the span twice, never not at all. */
    ring_write(thread, &event, args, args_len);
    if (!top) remove_frame(s, open, mine, event.self);
    else if (!open->level) set_depth(s, add_child_time(s, depth - 1, ran));
    else s->level--, set_depth(s, depth < 2 * DEEP ? add_child_time(s, depth - DEEP, ran) : depth - DEEP);
}

bool span_skip(Thread *thread, const Open *open) {
    Stack *s = open->stack;
    /* Nothing was recorded since, if recording has not stopped since. */
    if (!open->early || recording(RECORD_EVENTS) || open->ts != atomic_load_explicit(&g_control.stopped, memory_order_relaxed))
        return false;
    if (!s->track) return true; /* of the process that this one was forked from */
    uint32_t depth = atomic_load_explicit(&s->depth, memory_order_relaxed);
    bool mine = stack_owner(s) == thread->serial;
    if (mine && depth - 1 < STACK_FRAMES && s->frames[depth - 1].id == open->id) set_depth(s, depth - 1);
    else remove_frame(s, open, mine, 0);
    return true;
}

void span_abandon(const Open *open) {
    count_one(&g_counts.spans_abandoned);
    remove_frame(open->stack, open, false, 0);
}

static uint32_t copy_stable(const Stack *s, Frame *frames) {
    for (int tries = 0; tries < 1000; tries++) {
        uint64_t before = atomic_load_explicit(&s->pushes, memory_order_acquire);
        uint32_t depth = atomic_load_explicit(&s->depth, memory_order_acquire) % DEEP, framed = 0;
        if (depth > STACK_FRAMES) depth = STACK_FRAMES;
        memcpy(frames, s->frames, depth * sizeof *frames);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&s->pushes, memory_order_relaxed) != before) continue;
        for (uint32_t i = 0; i < depth; i++) /* what make_room moves is there twice */
            if (!dead(&frames[i]) && (!framed || frames[i].id != frames[framed - 1].id)) frames[framed++] = frames[i];
        return framed;
    }
    return 0; /* so busy that its spans end within the reading */
}

static uint32_t open_spans(const Stack *s, int64_t now, Event *events) {
    if (!atomic_load_explicit(&s->used, memory_order_acquire)) return 0;
    Frame frames[STACK_FRAMES];
    uint32_t depth = copy_stable(s, frames), count = 0;
    for (uint32_t d = 0; d < depth; d++) {
        const Frame *f = &frames[d];
        bool early = f->flags & FRAME_EARLY;
        if (f->ts > now) continue;
        int64_t ran = frame_ran(f, now), running = child_of(f);
        if (d + 1 < depth && frames[d + 1].ts < now) running += frame_ran(&frames[d + 1], now);
        events[count++] = (Event){.ts = f->ts,
                                  .dur = now - f->ts,
                                  .self = ran > running ? ran - running : 0,
                                  .id = f->id,
                                  .parent = d ? frames[d - 1].id : s->parent,
                                  .name = f->name,
                                  .track = s->track,
                                  .step = -1,
                                  .category = f->category,
                                  .kind = KIND_SPAN,
                                  .flags = early ? FLAG_OPEN | FLAG_CLIPPED : FLAG_OPEN};
    }
    return count;
}

PyObject *stacks_open_spans(PyObject *all, const Stack *stacks, size_t count, int64_t now) {
    Event events[STACK_FRAMES];
    for (size_t i = 0; all && i < count; i++) {
        uint32_t found = open_spans(&stacks[i], now, events), good = 0;
        for (uint32_t n = 0; n < found; n++)
            if (events[n].ts > 0 && events[n].id) events[good++] = events[n];
        Py_ssize_t size = PyBytes_GET_SIZE(all), more = (Py_ssize_t)(good * sizeof *events);
        if (good && !_PyBytes_Resize(&all, size + more)) memcpy(PyBytes_AS_STRING(all) + size, events, (size_t)more);
    }
    return all;
}

PyObject *stack_py_open_spans(PyObject *self, PyObject *unused) {
    int64_t now = clock_now();
    PyObject *all = PyBytes_FromStringAndSize(NULL, 0);
    for (uint32_t i = 0, n = atomic_load_explicit(&total, memory_order_acquire); i < n; i += CHUNK)
        all = stacks_open_spans(all, chunks[i / CHUNK], CHUNK, now);
    return all;
}
