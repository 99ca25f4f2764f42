/* Arguments of events: encoding of Python values into a bounded buffer, and back. */
#include "core.h"

#define MAX_ITEMS 256 /* of a list, tuple or dict that is kept as JSON */
#define MAX_DEPTH 4

void arg_put(ArgBuffer *buffer, uint32_t key, char type, const void *value, size_t len) {
    if (buffer->len + sizeof(ArgItem) + len > MAX_ARGS_BYTES) {
        count_one(&g_counts.arguments_cut);
        return;
    }
    ArgItem item = {key, (uint16_t)len, (uint8_t)type, 0};
    memcpy(buffer->bytes + buffer->len, &item, sizeof item);
    memcpy(buffer->bytes + buffer->len + sizeof item, value, len);
    buffer->len += (uint32_t)(sizeof item + len);
}

void arg_put_text(ArgBuffer *buffer, uint32_t key, const char *text, size_t len) {
    if (len > MAX_VALUE) count_one(&g_counts.values_cut);
    arg_put(buffer, key, 's', text, utf8_cut(text, len, MAX_VALUE));
}

/* `<type>` or `<type of 3>` instead of a value. */
static void put_type(ArgBuffer *buffer, uint32_t key, const PyTypeObject *type, Py_ssize_t size) {
    char note[160] = "<";
    size_t len = 1 + utf8_cut(type->tp_name, strlen(type->tp_name), 100);
    memcpy(note + 1, type->tp_name, len - 1);
    len += (size_t)(size < 0 ? snprintf(note + len, 32, ">") : snprintf(note + len, 32, " of %zd>", size));
    arg_put_text(buffer, key, note, len);
}

/* Scalars of numpy count as numbers; no other foreign type does, as its conversions may wait for a device. */
static PyObject *numpy_number(PyObject *value) {
    const char *name = Py_TYPE(value)->tp_name;
    if (strncmp(name, "numpy.", 6)) return NULL;
    name += 6;
    PyObject *number = !strncmp(name, "int", 3) || !strncmp(name, "uint", 4) ? PyNumber_Index(value)
                       : !strncmp(name, "float", 5)                          ? PyNumber_Float(value)
                       : !strncmp(name, "bool", 4)                           ? PyBool_FromLong(PyObject_IsTrue(value) == 1)
                                                                             : NULL;
    PyErr_Clear(); /* an array of several numbers, say: shown as what it is */
    return number;
}

/* The text or dict that Python's half makes of values of well-known types: a str or dict. NULL for others; or, with an exception, where a
 * signal handler of the program has raised meanwhile. */
static PyObject *known_values;
static PyObject *known_value(PyObject *value) {
    PyObject *shown = known_values ? PyObject_CallOneArg(known_values, value) : NULL;
    if (shown == Py_None) Py_CLEAR(shown);
    return shown;
}
PyObject *arguments_py_set_known_values(PyObject *self, PyObject *function) {
    Py_XSETREF(known_values, Py_NewRef(function));
    Py_RETURN_NONE;
}

/* JSON text of plain values only: nothing that would run user code, such as a tensor's repr. */
typedef struct {
    char text[MAX_VALUE];
    size_t len;
    int items;
} Json;

static bool json_add(Json *json, const char *text, size_t len) {
    if (json->len + len > sizeof json->text) return false;
    memcpy(json->text + json->len, text, len);
    json->len += len;
    return true;
}

static bool json_text(Json *json, PyObject *value) {
    Py_ssize_t len;
    PyObject *encoded;
    const char *utf8 = utf8_object(value, &len, &encoded);
    bool ok = utf8 && len < MAX_VALUE && json_add(json, "\"", 1);
    for (Py_ssize_t i = 0; ok && i < len; i++) {
        unsigned char c = (unsigned char)utf8[i];
        char escaped[8];
        int n = c == '"' || c == '\\' ? snprintf(escaped, 8, "\\%c", c)
                : c < 0x20            ? snprintf(escaped, 8, "\\u%04x", c)
                                      : (escaped[0] = (char)c, 1);
        ok = json_add(json, escaped, (size_t)n);
    }
    Py_XDECREF(encoded);
    if (!utf8) PyErr_Clear(); /* out of memory: the value counts as cut */
    return ok && json_add(json, "\"", 1);
}

static bool json_value(Json *json, PyObject *value, int depth) {
    char number[40];
    if (++json->items > MAX_ITEMS || depth > MAX_DEPTH) return false;
    if (value == Py_None) return json_add(json, "null", 4);
    if (PyBool_Check(value)) return value == Py_True ? json_add(json, "true", 4) : json_add(json, "false", 5);
    if (PyLong_Check(value)) {
        int overflow;
        long long n = PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow && json_add(json, number, (size_t)snprintf(number, sizeof number, "%lld", n));
    }
    if (PyFloat_Check(value)) {
        double d = PyFloat_AS_DOUBLE(value);
        if (d != d || d - d != 0) return json_add(json, d != d ? "\"NaN\"" : d > 0 ? "\"inf\"" : "\"-inf\"", d < 0 ? 6 : 5);
        char *text = PyOS_double_to_string(d, 'r', 0, 0, NULL); /* not printf, which minds the locale */
        bool ok = text && json_add(json, text, strlen(text));
        if (!text) PyErr_Clear();
        PyMem_Free(text);
        return ok;
    }
    if (PyUnicode_Check(value)) return json_text(json, value);
    if (PyTuple_Check(value) || PyList_Check(value)) {
        bool ok = json_add(json, "[", 1);
        for (Py_ssize_t i = 0; ok && i < PySequence_Fast_GET_SIZE(value); i++) {
            PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(value, i));
            ok = (i == 0 || json_add(json, ", ", 2)) && json_value(json, item, depth + 1);
            Py_DECREF(item);
        }
        return ok && json_add(json, "]", 1);
    }
    if (PyDict_Check(value)) {
        PyObject *key, *item;
        Py_ssize_t at = 0;
        bool ok = json_add(json, "{", 1), first = true;
        for (; ok && PyDict_Next(value, &at, &key, &item); first = false) {
            Py_INCREF(key);
            Py_INCREF(item);
            ok = PyUnicode_Check(key) && (first || json_add(json, ", ", 2)) && json_text(json, key) &&
                 json_add(json, ": ", 2) && json_value(json, item, depth + 1);
            Py_DECREF(item);
            Py_DECREF(key);
        }
        return ok && json_add(json, "}", 1);
    }
    PyObject *scalar = numpy_number(value);
    if (!scalar) scalar = known_value(value);
    bool ok = scalar && json_value(json, scalar, depth);
    Py_XDECREF(scalar);
    return ok;
}

/* An int beyond 64 bits keeps its digits, as text. Not by `str`, which a subclass may have made its own. */
static void put_large(ArgBuffer *buffer, uint32_t key, PyObject *value) {
    PyObject *digits = PyNumber_ToBase(value, 10);
    Py_ssize_t len;
    const char *text = digits ? PyUnicode_AsUTF8AndSize(digits, &len) : NULL;
    if (text) arg_put_text(buffer, key, text, (size_t)len);
    else {
        PyErr_Clear(); /* more digits than sys.set_int_max_str_digits allows */
        count_one(&g_counts.values_cut);
        put_type(buffer, key, Py_TYPE(value), -1);
    }
    Py_XDECREF(digits);
}

void arg_put_object(ArgBuffer *buffer, uint32_t key, PyObject *value) {
    PyObject *number;
    if (PyBool_Check(value)) {
        char byte = value == Py_True;
        arg_put(buffer, key, 'b', &byte, 1);
    } else if (PyLong_Check(value)) {
        int overflow;
        long long n = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (!overflow) arg_put(buffer, key, 'i', &n, 8);
        else {
            unsigned long long u = overflow > 0 ? PyLong_AsUnsignedLongLong(value) : 0;
            if (overflow > 0 && !PyErr_Occurred()) arg_put(buffer, key, 'u', &u, 8);
            else PyErr_Clear(), put_large(buffer, key, value);
        }
    } else if (PyFloat_Check(value)) {
        double d = PyFloat_AS_DOUBLE(value);
        arg_put(buffer, key, 'd', &d, 8);
    } else if (value == Py_None) arg_put(buffer, key, 'n', "", 0);
    else if (PyUnicode_Check(value)) {
        Py_ssize_t len;
        PyObject *encoded;
        const char *utf8 = utf8_object(value, &len, &encoded);
        if (utf8) arg_put_text(buffer, key, utf8, (size_t)len);
        else PyErr_Clear(), count_one(&g_counts.arguments_cut);
        Py_XDECREF(encoded);
    } else if (PyTuple_Check(value) || PyList_Check(value) || PyDict_Check(value)) {
        Json json;
        json.len = 0, json.items = 0;
        if (json_value(&json, value, 0)) arg_put(buffer, key, 'j', json.text, json.len);
        else {
            count_one(&g_counts.values_cut);
            put_type(buffer, key, Py_TYPE(value),
                     PyDict_Check(value) ? PyDict_GET_SIZE(value) : PySequence_Fast_GET_SIZE(value));
        }
    } else if ((number = numpy_number(value)) || (number = known_value(value))) {
        arg_put_object(buffer, key, number);
        Py_DECREF(number);
    } else if (!PyErr_Occurred()) {
        /* An unknown object: its repr may be slow, wait for a device, or raise. Only its type is recorded. */
        count_one(&g_counts.arguments_opaque);
        put_type(buffer, key, Py_TYPE(value), -1);
    }
}

PyObject *arguments_py_encode(PyObject *self, PyObject *mapping) {
    if (!PyDict_Check(mapping)) return PyErr_Format(PyExc_TypeError, "arguments must be a dict, got %R", Py_TYPE(mapping));
    ArgBuffer *buffer = PyMem_Malloc(sizeof *buffer);
    if (!buffer) return PyErr_NoMemory();
    buffer->len = 0;
    PyObject *key, *value, *result = NULL;
    Py_ssize_t at = 0;
    while (PyDict_Next(mapping, &at, &key, &value)) {
        uint32_t id = strings_intern_object(key);
        if (PyErr_Occurred()) goto done;
        arg_put_object(buffer, id, value);
        if (PyErr_Occurred()) goto done;
    }
    result = PyBytes_FromStringAndSize(buffer->bytes, buffer->len);
done:
    PyMem_Free(buffer);
    return result;
}

static PyObject *decode_value(uint8_t type, const char *value, size_t len) {
    int64_t i;
    double d;
    if ((type == 'i' || type == 'u' || type == 'd') && len == 8) {
        memcpy(&i, value, 8);
        memcpy(&d, value, 8);
        return type == 'i'   ? PyLong_FromLongLong(i)
               : type == 'u' ? PyLong_FromUnsignedLongLong((uint64_t)i)
                             : PyFloat_FromDouble(d);
    }
    if (type == 'b' && len == 1) return PyBool_FromLong(*value);
    if (type == 'n') Py_RETURN_NONE;
    PyObject *text = PyUnicode_DecodeUTF8(value, (Py_ssize_t)len, "replace");
    if (type != 'j' || !text) return text;
    PyObject *json = PyImport_ImportModule("json");
    PyObject *decoded = json ? PyObject_CallMethod(json, "loads", "O", text) : NULL;
    Py_XDECREF(json);
    /* No JSON, or nested too deeply, in a damaged file: shown as it is. */
    if (!decoded && (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_RecursionError)))
        return PyErr_Clear(), text;
    Py_DECREF(text);
    return decoded;
}

PyObject *arguments_py_decode(PyObject *self, PyObject *args) {
    Py_buffer heap;
    unsigned long long at, len;
    if (!PyArg_ParseTuple(args, "y*KK", &heap, &at, &len)) return NULL;
    PyObject *result = NULL;
    unsigned long long end = at + len;
    if (end < at || end > (unsigned long long)heap.len) {
        PyErr_Format(PyExc_ValueError, "arguments at %llu of %llu bytes lie outside a heap of %zd bytes", at, len, heap.len);
        goto done;
    }
    result = PyDict_New();
    while (result && end - at >= sizeof(ArgItem)) {
        ArgItem item;
        memcpy(&item, (char *)heap.buf + at, sizeof item);
        at += sizeof item;
        if (item.len > end - at) break;
        const String *key = strings_get(item.key);
        PyObject *name = PyUnicode_DecodeUTF8(key->text, key->len, "strict");
        PyObject *value = name ? decode_value(item.type, (char *)heap.buf + at, item.len) : NULL;
        if (!value || PyDict_SetItem(result, name, value) < 0) Py_CLEAR(result);
        Py_XDECREF(name);
        Py_XDECREF(value);
        at += item.len;
    }
done:
    PyBuffer_Release(&heap);
    return result;
}
