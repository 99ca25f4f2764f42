/* Frames of segments: see segment_frame.c. */
#ifndef STEPSCOPE_SEGMENT_FRAME_H
#define STEPSCOPE_SEGMENT_FRAME_H

#include "core.h"

typedef struct {
    const char *const *names;
    size_t count;
} FrameSources;

typedef struct {
    size_t columns, heap, table; /* bytes of each, in this order */
    uint64_t cut;                /* events without their arguments, which are none */
} FrameParts;

typedef struct {
    const uint32_t *ids; /* of this process, by their place in the frame's table */
    size_t count;
} FrameIds;

void segment_fork(int phase);
PyObject *segment_py_encode_frame(PyObject *self, PyObject *args);
PyObject *segment_py_decode_frame(PyObject *self, PyObject *args);
PyObject *segment_py_compress(PyObject *self, PyObject *bytes);
PyObject *segment_py_decompress(PyObject *self, PyObject *args);

#endif
