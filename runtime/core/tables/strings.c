/* The table of names: append-only, ids for ever, text also kept escaped for JSON.
 *
 * Entries live in chunks that never move, so readers need no lock. Adding takes one mutex; the usual caller
 * comes through a small cache keyed by the identity of the str object, which holds a reference to it. */
#include "encoders/json.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define CHUNK 4096
#define CACHE 4096

static String *chunks[(MAX_STRINGS + FIRST_NAME) / CHUNK + 1];
static const String nothing = {"", "", 0, 0};
static const char too_many[] = "(too many names)"; /* the one name that has a place behind the last */
static uint32_t *slots;          /* open addressing, ids; 0 = free */
static uint32_t slot_mask, next_name = FIRST_NAME, next_category = 1, overflow_name;
static uint32_t *order;          /* ids in the order in which they were added */
static atomic_uint added;
static uint32_t order_size;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static struct {
    PyObject *text;
    uint32_t id;
} cache[CACHE];

const String *strings_get(uint32_t id) {
    if (id / CHUNK >= sizeof chunks / sizeof *chunks) return &nothing;
    String *chunk = __atomic_load_n(&chunks[id / CHUNK], __ATOMIC_ACQUIRE);
    if (!chunk || !__atomic_load_n(&chunk[id % CHUNK].text, __ATOMIC_ACQUIRE)) return &nothing;
    return &chunk[id % CHUNK];
}

static void persist(uint32_t id, const String *s) {
    uint32_t head[2] = {id, s->len};
    char buffer[8 + MAX_NAME];
    memcpy(buffer, head, 8);
    memcpy(buffer + 8, s->text, s->len);
    session_append(&file, buffer, 8 + s->len);
}

static bool grow(void) {
    uint32_t size = slots ? (slot_mask + 1) * 2 : 8192;
    uint32_t *bigger = calloc(size, sizeof *bigger);
    uint32_t *longer = realloc(order, size / 2 * sizeof *order);
    if (longer) order = longer, order_size = size / 2;
    if (!bigger || !longer) {
        free(bigger);
        return false;
    }
    for (uint32_t i = 0; slots && i <= slot_mask; i++) {
        if (!slots[i]) continue;
        const String *s = strings_get(slots[i]);
        uint32_t at = (uint32_t)hash_text(s->text, s->len) & (size - 1);
        while (bigger[at]) at = (at + 1) & (size - 1);
        bigger[at] = slots[i];
    }
    free(slots);
    slots = bigger, slot_mask = size - 1;
    return true;
}

/* A name and a category of the same text are two entries: their ids come from different ranges. */
static uint32_t add(const char *text, size_t len, bool category) {
    uint32_t n = atomic_load_explicit(&added, memory_order_relaxed);
    if ((!slots || n + 1 >= order_size) && !grow()) return 0;
    uint32_t at = (uint32_t)hash_text(text, len) & slot_mask;
    for (; slots[at]; at = (at + 1) & slot_mask) {
        const String *s = strings_get(slots[at]);
        if (s->len == len && !memcmp(s->text, text, len) && (slots[at] < FIRST_NAME) == category) return slots[at];
    }
    if (category ? next_category >= FIRST_NAME : next_name >= MAX_STRINGS + (text == too_many)) return 0;
    uint32_t id = category ? next_category : next_name;
    if (!chunks[id / CHUNK]) {
        String *chunk = calloc(CHUNK, sizeof *chunk);
        if (!chunk) return 0;
        __atomic_store_n(&chunks[id / CHUNK], chunk, __ATOMIC_RELEASE);
    }
    char *memory = malloc(len * 7 + 3);
    if (!memory) return 0;
    String *s = &chunks[id / CHUNK][id % CHUNK];
    memcpy(memory, text, len);
    memory[len] = 0;
    char *quoted = memory + len + 1;
    s->json_len = (uint32_t)(write_text(quoted, text, len) - quoted) - 2;
    s->len = (uint32_t)len;
    char *fitted = realloc(memory, len + 2 + s->json_len);
    if (fitted) memory = fitted;
    s->json = memory + len + 2;
    __atomic_store_n(&s->text, memory, __ATOMIC_RELEASE);
    if (category) next_category++;
    else next_name++;
    slots[at] = id;
    order[n] = id;
    persist(id, s);
    atomic_store_explicit(&added, n + 1, memory_order_release);
    return id;
}

static uint32_t intern(const char *text, size_t len, bool category) {
    char clean[MAX_NAME];
    if (len > MAX_NAME) {
        len = utf8_cut(text, len, MAX_NAME);
        count_one(&g_counts.names_cut);
    }
    for (size_t i = 0, n; i < len; i += n) {
        n = utf8_sequence((const unsigned char *)text + i, len - i);
        if (n) continue;
        if (text != clean) memcpy(clean, text, len), text = clean;
        clean[i] = '?', n = 1;
    }
    pthread_mutex_lock(&lock);
    uint32_t id = add(text, len, category);
    if (!id && !category) {
        if (!overflow_name) overflow_name = add(too_many, sizeof too_many - 1, false);
        id = overflow_name;
    }
    pthread_mutex_unlock(&lock);
    if (!id || (id == overflow_name && !category)) count_one(category ? &g_counts.categories_full : &g_counts.strings_full);
    return id;
}

uint32_t strings_intern(const char *text, size_t len) { return intern(text, len, false); }
uint16_t strings_category(const char *text, size_t len) { return (uint16_t)intern(text, len, true); }

size_t utf8_cut(const char *utf8, size_t len, size_t most) {
    if (len <= most) return len;
    while (most && ((unsigned char)utf8[most] & 0xc0) == 0x80) most--;
    return most;
}

const char *utf8_object(PyObject *text, Py_ssize_t *len, PyObject **keep) {
    *keep = NULL;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, len);
    if (utf8 || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return utf8;
    PyErr_Clear();
    *keep = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
    if (!*keep) return NULL;
    *len = PyBytes_GET_SIZE(*keep);
    return PyBytes_AS_STRING(*keep);
}

static uint32_t intern_object(PyObject *text, bool category) {
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "a name must be a str, got %.200s: %R", Py_TYPE(text)->tp_name, text);
        return 0;
    }
    Py_ssize_t len;
    PyObject *keep;
    const char *utf8 = utf8_object(text, &len, &keep);
    uint32_t id = utf8 ? intern(utf8, (size_t)len, category) : 0;
    Py_XDECREF(keep);
    if (utf8 && !id && !category) PyErr_NoMemory();
    return id;
}

uint32_t strings_intern_object(PyObject *text) {
    size_t at = ((uintptr_t)text >> 4) % CACHE;
    if (cache[at].text == text) return cache[at].id;
    uint32_t id = intern_object(text, false);
    /* A long name is not kept alive for the sake of the cache. */
    if (id && PyUnicode_GET_LENGTH(text) <= MAX_NAME) {
        PyObject *old = cache[at].text;
        cache[at].text = Py_NewRef(text), cache[at].id = id;
        Py_XDECREF(old);
    }
    return id;
}

uint32_t strings_intern_early(PyObject *text) {
    static uint32_t early;
    size_t at = ((uintptr_t)text >> 4) % CACHE;
    if (cache[at].text == text) return cache[at].id;
    if (early >= MAX_EARLY_NAMES) return 0;
    uint32_t before = atomic_load_explicit(&added, memory_order_relaxed), id = strings_intern_object(text);
    early += atomic_load_explicit(&added, memory_order_relaxed) - before;
    return id;
}

int strings_category_object(PyObject *text, uint16_t *category) {
    static struct {
        PyObject *text;
        uint16_t id;
    } recent[64];
    size_t at = ((uintptr_t)text >> 4) % 64;
    if (recent[at].text != text) {
        if (!PyUnicode_Check(text))
            return PyErr_Format(PyExc_TypeError, "category must be a str, got %.200s: %R", Py_TYPE(text)->tp_name, text), -1;
        uint16_t id = PyUnicode_GET_LENGTH(text) ? (uint16_t)intern_object(text, true) : 0;
        if (PyErr_Occurred()) return -1;
        PyObject *old = recent[at].text;
        recent[at].text = Py_NewRef(text), recent[at].id = id;
        Py_XDECREF(old);
    }
    *category = recent[at].id;
    return 0;
}

int strings_open(const char *directory) {
    int fd = session_file(directory, "strings", O_WRONLY | O_APPEND | O_CREAT | O_EXCL);
    if (fd < 0) return -1;
    pthread_mutex_lock(&lock);
    file = fd;
    uint32_t n = atomic_load(&added);
    /* There may be a million, which is no number of system calls. */
    int copy = n ? dup(fd) : -1;
    FILE *all = copy < 0 ? NULL : fdopen(copy, "a");
    if (copy >= 0 && !all) close(copy);
    for (uint32_t i = 0; i < n; i++) {
        const String *s = strings_get(order[i]);
        uint32_t head[2] = {order[i], s->len};
        if (all) fwrite(head, sizeof head, 1, all), fwrite(s->text, 1, s->len, all);
    }
    bool failed = n && (!all || ferror(all));
    if (all && fclose(all)) failed = true;
    if (failed) count_one(&g_counts.strings_full);
    pthread_mutex_unlock(&lock);
    return 0;
}

void strings_close(void) {
    pthread_mutex_lock(&lock);
    if (file >= 0) close(file);
    file = -1;
    pthread_mutex_unlock(&lock);
}

void strings_fork(int phase) {
    fork_lock(&lock, phase);
    if (phase == FORK_CHILD) strings_close();
}

PyObject *strings_py_intern(PyObject *self, PyObject *name) {
    uint32_t id = strings_intern_object(name);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLong(id);
}

PyObject *strings_py_category(PyObject *self, PyObject *name) {
    uint32_t id = PyUnicode_Check(name) && PyUnicode_GET_LENGTH(name) == 0 ? 0 : intern_object(name, true);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLong(id);
}

PyObject *strings_py_text(PyObject *self, PyObject *id) {
    unsigned long value = PyLong_AsUnsignedLong(id);
    if (PyErr_Occurred()) return NULL;
    const String *s = strings_get(value > UINT32_MAX ? 0 : (uint32_t)value);
    return PyUnicode_DecodeUTF8(s->text, s->len, "strict");
}

PyObject *strings_py_count(PyObject *self, PyObject *unused) {
    return PyLong_FromUnsignedLong(atomic_load_explicit(&added, memory_order_relaxed));
}
