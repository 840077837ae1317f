/* What Python calls of JPEG files, for the module (_native.c). */

#ifndef SDS_NATIVE_H
#define SDS_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#pragma GCC visibility push(hidden)

PyObject *sds_scan_jpeg(PyObject *module, PyObject *given);  /* _header.c */
PyObject *sds_decode_jpeg(PyObject *module, PyObject *args); /* _jpeg.c */
int sds_fill_jpeg(PyObject *module);                         /* says whether it decodes any here */

#pragma GCC visibility pop
#endif
