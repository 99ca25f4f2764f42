/* See event_columns.c. */
#ifndef STEPSCOPE_EVENT_COLUMNS_H
#define STEPSCOPE_EVENT_COLUMNS_H

#include "core.h"

typedef struct {
    size_t columns, heap, table; /* bytes of each, in this order */
    uint64_t cut;                /* events without their arguments, which are none */
} FrameParts;

typedef struct {
    const uint32_t *ids; /* of this process, by their place in the frame's table */
    size_t count;
} FrameIds;

void columns_fork(int phase);
PyObject *columns_py_encode_frames(PyObject *self, PyObject *args);
PyObject *columns_py_decode(PyObject *self, PyObject *args);
PyObject *zstd_py_available(PyObject *self, PyObject *unused);
PyObject *zstd_py_decompress(PyObject *self, PyObject *args);

#endif
