/* The collector of Intel's ITT interface, which torch calls around every operator under `emit_itt()`.
 *
 * torch holds ITT's static part. That loads the library named by INTEL_LIBITTNOTIFY64, which is this extension, and
 * hands its table of functions to `__itt_api_init` (contract: github.com/intel/ittapi, ittnotify_static.c). Calls come
 * from any thread, usually without the GIL: nothing here touches a Python object, and once a thread knows a name
 * nothing allocates or locks. torch makes a string handle for every single call: handles are entries of the
 * thread's cache of names, never a list that grows. */
#include "core.h"
#include <pthread.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define OURS 0x53534e   /* in `extra1` of our handles; the static part leaves 0 in those that it makes before it loads us */
#define NAMES 1024      /* names that a thread keeps; a power of two */
#define ENGINE_NAME "autograd::engine::evaluate_function: " /* and the node's name */
#define TASKS 512       /* operators of one thread inside each other */

typedef struct {
    const char *name;
    void **function, *initial, *null;
    int group;
} ApiEntry;
typedef struct Domain {
    volatile int flags;
    const char *name;
    void *wide;
    int extra1;
    void *extra2;
    struct Domain *next;
} Domain;
typedef struct Handle {
    const char *text;
    void *wide;
    int extra1;
    void *extra2;
    struct Handle *next;
} Handle;
typedef struct { uint64_t d1, d2, d3; } Id;
typedef struct {
    unsigned char magic[8];
    unsigned long major, minor, build;
    volatile long api_initialized, mutex_initialized, counter;
    pthread_mutex_t mutex;
    void *library, *error_handler;
    const char **path;
    ApiEntry *functions;
    void *next, *threads;
    Domain *domains;
} Global;

typedef struct {
    Handle handle; /* first: torch hands it back as the name of the task */
    const char *text;
    uint64_t hash;
    uint32_t len, name;
    uint16_t category;
    bool engine; /* of autograd, around a node that it runs */
} Name;
/* open.stack NULL: begun while nothing recorded. A region, which is no operator, is in the list of those that are open. */
typedef struct Task {
    Open open;
    bool engine, listed;
    atomic_bool ended; /* on another thread */
    struct Scratch *owner;
    struct Task *before, *after;
} Task;
typedef struct Scratch {
    struct Scratch *next; /* of all there are, threads that ended included: static handles may outlive their thread */
    bool used;
    uint32_t deeper, unmarked; /* unmarked: tasks outside of others that began while nothing recorded */
    atomic_uint depth;
    uint64_t omitted;
    Task open[TASKS];
    Name names[NAMES];
} Scratch;

static Name nothing = {.handle = {.extra1 = OURS}};
static Scratch *all;
static atomic_ullong unbalanced;
static atomic_int armed, domains;
static uint16_t operator_category, annotation_category;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Regions that are open, the latest first. One may end on another thread than it began on, as a function of TorchScript
 * does that waits for others, or a region that ends with a future. ITT does not say which task ends. So an end for which a
 * thread has no task ends the region of another thread that began last, if possible one that nothing runs in. Should that
 * be the wrong one, its own end will in turn find the one that is left. */
static Task *regions;
static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;

static void list_region(Scratch *s, Task *task) {
    pthread_mutex_lock(&regions_lock);
    task->owner = s, task->before = NULL, task->after = regions, task->listed = true;
    if (regions) regions->before = task;
    regions = task;
    pthread_mutex_unlock(&regions_lock);
}

static void unlist(Task *task) { /* with the lock held */
    if (task->before) task->before->after = task->after;
    else regions = task->after;
    if (task->after) task->after->before = task->before;
    task->listed = false;
}

/* False if another thread has ended it. */
static bool claim_region(Task *task) {
    pthread_mutex_lock(&regions_lock);
    bool mine = task->listed;
    if (mine) unlist(task);
    pthread_mutex_unlock(&regions_lock);
    return mine;
}

/* Ends the region of another thread, if there is one. */
static bool end_elsewhere(Thread *t, const Scratch *s, int64_t end) {
    Open open;
    pthread_mutex_lock(&regions_lock);
    Task *task = NULL;
    for (Task *r = regions; r; r = r->after) {
        if (r->owner == s) continue;
        if (!task) task = r;
        if (r->owner->open + atomic_load_explicit(&r->owner->depth, memory_order_relaxed) != r + 1) continue;
        task = r;
        break;
    }
    if (task) {
        unlist(task);
        open = task->open;
        atomic_store_explicit(&task->ended, true, memory_order_release);
    }
    pthread_mutex_unlock(&regions_lock);
    if (task) span_close(t, &open, end, 0, 0, 0, NULL, 0);
    return task;
}

/* The number of open tasks, without those at the top that have ended on other threads. For the owner. */
static uint32_t depth_of(Scratch *s) {
    uint32_t depth = atomic_load_explicit(&s->depth, memory_order_relaxed), was = depth;
    while (depth && atomic_load_explicit(&s->open[depth - 1].ended, memory_order_acquire)) depth--;
    if (depth != was) atomic_store_explicit(&s->depth, depth, memory_order_relaxed);
    return depth;
}

static bool is_engine(const char *text, size_t len) {
    return len >= strlen(ENGINE_NAME) && !memcmp(text, ENGINE_NAME, strlen(ENGINE_NAME));
}

/* As torch.profiler has it, by the name alone: operators have a namespace, nodes of autograd end in `Backward0`. */
static bool is_operator(const char *text, size_t len) {
    static const char *const bare[] = {"detach", "record_param_comms", "CopyBackwards", "CopySlices", "AccumulateGrad"};
    for (size_t i = 0; i < sizeof bare / sizeof *bare; i++)
        if (len == strlen(bare[i]) && !memcmp(text, bare[i], len)) return true;
    if (memmem(text, len, "::", 2)) return true;
    while (len && text[len - 1] >= '0' && text[len - 1] <= '9') len--;
    return len >= 8 && !memcmp(text + len - 8, "Backward", 8);
}

static Name *find(Scratch *s, const char *text, size_t len) {
    uint64_t hash = hash_text(text, len);
    Name *n = &s->names[hash % NAMES];
    for (int i = 0; i < 2; i++, n = &s->names[(hash % NAMES) ^ 1])
        if (n->hash == hash && n->len == len && n->text && !memcmp(n->text, text, len)) return n;
    if (s->names[hash % NAMES].text == NULL) n = &s->names[hash % NAMES];
    uint32_t name = strings_intern(text, len);
    const String *known = strings_get(name); /* a name that was cut or mended never matches, and is looked up each time */
    *n = (Name){{.text = known->text, .extra1 = OURS},
                known->text,
                hash,
                known->len,
                name,
                is_operator(text, len) ? operator_category : annotation_category,
                is_engine(text, len)};
    return n;
}

static Scratch *scratch_of(Thread *t) {
    if (t->itt) return t->itt;
    pthread_mutex_lock(&lock);
    Scratch *s = all;
    while (s && s->used) s = s->next;
    if (!s && (s = calloc(1, sizeof *s))) {
        s->next = all;
        all = s;
    }
    if (s) {
        s->used = true;
        s->depth = s->deeper = s->unmarked = 0;
    }
    pthread_mutex_unlock(&lock);
    if (!s) count_one(&g_counts.rings_failed);
    return t->itt = s;
}

void itt_thread_end(Thread *t) {
    Scratch *s = t->itt;
    if (!s) return;
    pthread_mutex_lock(&regions_lock);
    for (uint32_t i = 0; i < s->depth; i++)
        if (s->open[i].listed) unlist(&s->open[i]);
    pthread_mutex_unlock(&regions_lock);
    pthread_mutex_lock(&lock);
    s->used = false;
    pthread_mutex_unlock(&lock);
}

static Handle *string_handle_create(const char *text) {
    if (!text || !recording(RECORD_OPERATORS) || !strcmp(text, ITT_UNRECORDED)) return &nothing.handle;
    Thread *t = thread_current();
    Scratch *s = t ? scratch_of(t) : NULL;
    return s ? &find(s, text, strlen(text))->handle : &nothing.handle;
}

/* Whether the engine's span of this name is the one around that node: it may hold other operators besides. */
static bool runs(uint32_t engine, const Name *node) {
    const String *s = strings_get(engine);
    return s->len == strlen(ENGINE_NAME) + node->len && !memcmp(s->text + strlen(ENGINE_NAME), node->text, node->len);
}

static void task_begin(const Domain *domain, Id id, Id parent, Handle *handle) {
    /* The static part calls for no domain that is off. But the call that loads us comes from one that was on until then, and
     * its end never comes. */
    if (!domain->flags) return;
    bool recorded = recording(RECORD_OPERATORS);
    Thread *t = thread_current();
    if (!t && recorded) ring_refuse();
    Scratch *s = t ? recorded ? scratch_of(t) : t->itt : NULL;
    if (s && !recorded) s->omitted += omitted(RECORD_OPERATORS);
    /* A task that is not recorded leaves a mark only inside others: an end that finds nothing belongs to such a one. */
    if (!s) return;
    uint32_t depth = depth_of(s);
    if (!recorded && depth == 0) {
        s->unmarked++;
        return;
    }
    if (depth == TASKS) {
        s->deeper++;
        return;
    }
    Name *n = (Name *)handle;
    if (handle && handle->extra1 != OURS) { /* of the static part, made by the call that loaded us */
        const char *text = handle->text;
        n = text && strcmp(text, ITT_UNRECORDED) ? find(s, text, strlen(text)) : NULL;
    }
    Task *task = &s->open[depth++];
    atomic_store_explicit(&s->depth, depth, memory_order_relaxed);
    task->open.stack = NULL;
    task->listed = false;
    atomic_store_explicit(&task->ended, false, memory_order_relaxed);
    if (!recorded || !n || n == &nothing) return;
    bool node = depth > 1 && task[-1].open.stack && task[-1].engine && runs(task[-1].open.name, n);
    task->engine = n->engine;
    span_open(t, stack_without_gil(t), &task->open, n->name, node ? operator_category : n->category, FRAME_ITT);
    if (!node && n->category == annotation_category) list_region(s, task);
}

static void task_end(const Domain *domain) {
    int64_t end = clock_now();
    Thread *t = thread_current();
    Scratch *s = t ? t->itt : NULL;
    uint32_t depth = s ? depth_of(s) : 0;
    Task *task = NULL;
    if (s && !s->deeper && depth) {
        task = &s->open[--depth];
        atomic_store_explicit(&s->depth, depth, memory_order_relaxed);
        if (task->listed && !claim_region(task)) { /* ended on another thread just now: this is the end of one further out */
            task_end(domain);
            return;
        }
    }
    if (s && !task && s->deeper) s->deeper--;
    else if (s && !task && s->unmarked) s->unmarked--;
    else if (!task) { /* begun before recording did, or on another thread */
        if (recording(RECORD_OPERATORS) && !(t && end_elsewhere(t, s, end))) count_one(&unbalanced);
    } else if (task->open.stack) span_close(t, &task->open, end, 0, 0, 0, NULL, 0);
}

/* Other users of ITT in the process (oneDNN, say) find their domain switched off, and make no calls. */
static Domain *domain_create(const char *name) {
    Domain *d = calloc(1, sizeof *d);
    if (!d || !name) return free(d), NULL;
    d->name = strdup(name);
    d->flags = !strcmp(name, "PyTorch");
    atomic_fetch_add(&domains, d->flags);
    return d;
}

uint64_t itt_omitted(void) {
    uint64_t sum = 0;
    pthread_mutex_lock(&lock);
    for (Scratch *s = all; s; s = s->next) sum += s->omitted;
    pthread_mutex_unlock(&lock);
    return sum;
}

static void after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&regions_lock, NULL);
    for (; regions; regions = regions->after) regions->listed = false; /* most are of threads that are not here */
}

EXPORT void __itt_api_init(Global *global, int groups) {
    static const unsigned char magic[8] = {0xed, 0xab, 0xab, 0xec, 0x0d, 0xee, 0xda, 0x30};
    if (memcmp(global->magic, magic, sizeof magic) || global->major < 3) return;
    static const struct {
        const char *name;
        void *function;
    } ours[] = {{"__itt_domain_create", domain_create},
                {"__itt_string_handle_create", string_handle_create},
                {"__itt_task_begin", task_begin},
                {"__itt_task_end", task_end}};
    for (ApiEntry *f = global->functions; f->name; f++) {
        *f->function = f->null;
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
            if (!strcmp(f->name, ours[i].name)) *f->function = ours[i].function;
    }
    for (Domain *d = global->domains; d; d = d->next) {
        d->flags = d->name && !strcmp(d->name, "PyTorch");
        atomic_fetch_add(&domains, d->flags);
    }
    operator_category = strings_category("cpu_op", 6);
    annotation_category = strings_category("user_annotation", 15);
    if (atomic_fetch_add(&armed, 1) == 0 && pthread_atfork(NULL, NULL, after_fork)) count_one(&g_counts.rings_failed);
}

PyObject *itt_py_statistics(PyObject *self, PyObject *unused) {
    return Py_BuildValue("{sisisK}", "armed", atomic_load(&armed), "domains", atomic_load(&domains), "unbalanced",
                         (unsigned long long)atomic_load(&unbalanced));
}
