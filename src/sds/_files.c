/* Whole small files: read, or written and named, while Python's lock is let go of once.

   os.open, os.fstat, os.read and os.close let go of it four times. Each time another thread may take it, and this one
   sleeps until it has it back: on a busy loader that costs more than the calls themselves. */

#define _GNU_SOURCE /* O_PATH */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bytes of memory that are there before the size of a file is known: most files fit, and it is less than what malloc
   takes from the kernel each time (128 KiB). */
enum { ROOM = 120 << 10 };

/* Up to `size` bytes from the beginning of a file; fewer only where it ends. -1: errno says why. */
static Py_ssize_t read_all(int file, char *into, Py_ssize_t size) {
    Py_ssize_t done = 0;
    while (done < size) {
        const ssize_t num = read(file, into + done, size - done);
        if (num < 0 && errno == EINTR) continue;
        if (num < 0) return -1;
        if (num == 0) break;
        done += num;
    }
    return done;
}

static PyObject *read_file(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *given, *path;
    Py_ssize_t most, size = 0, done = 0;
    struct stat facts;
    int is_file = 0, is_wanted = 0, failure = 0, file;
    if (!PyArg_ParseTuple(args, "On", &given, &most) || !PyUnicode_FSConverter(given, &path)) return NULL;
    PyObject *data = PyBytes_FromStringAndSize(NULL, ROOM);
    if (data == NULL) {
        Py_DECREF(path);
        return NULL;
    }
    char *into = PyBytes_AS_STRING(data);
    Py_BEGIN_ALLOW_THREADS
    file = open(PyBytes_AS_STRING(path), O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* else a pipe waits for its writer */
    if (file < 0 || fstat(file, &facts) < 0) {
        failure = errno;
    } else {
        is_file = S_ISREG(facts.st_mode), size = facts.st_size;
        is_wanted = is_file && 0 < size && size <= most;
        if (is_wanted && size <= ROOM && (done = read_all(file, into, size)) < 0) failure = errno;
    }
    if (file >= 0 && (failure || !is_wanted || size <= ROOM)) close(file);
    Py_END_ALLOW_THREADS
    if (is_wanted && size > ROOM) {
        Py_DECREF(data);
        data = PyBytes_FromStringAndSize(NULL, size);
        into = data == NULL ? NULL : PyBytes_AS_STRING(data);
        Py_BEGIN_ALLOW_THREADS
        if (into != NULL && (done = read_all(file, into, size)) < 0) failure = errno;
        close(file);
        Py_END_ALLOW_THREADS
    }
    if (failure) {
        errno = failure;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, given);
    }
    Py_DECREF(path);
    if (PyErr_Occurred()) {
        Py_XDECREF(data);
        return NULL;
    }
    if (!is_wanted) {
        Py_DECREF(data);
        return Py_BuildValue("nOO", size, is_file ? Py_True : Py_False, Py_None);
    }
    if (_PyBytes_Resize(&data, done) < 0) return NULL;
    return Py_BuildValue("nON", size, Py_True, data);
}

/* Writes all parts, whose places and lengths change on the way. -1: errno says why. */
static int write_all(int file, struct iovec *parts, Py_ssize_t num) {
    while (num) {
        ssize_t done = writev(file, parts, num < IOV_MAX ? (int)num : IOV_MAX);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        for (; num && done >= (ssize_t)parts->iov_len; parts++, num--) done -= parts->iov_len;
        if (num) parts->iov_base = (char *)parts->iov_base + done, parts->iov_len -= done;
    }
    return 0;
}

/* The same, into a new file of a folder, which is given its name when all of it is there. */
static int write_to(const char *folder, const char *draft, const char *name, struct iovec *parts, Py_ssize_t num) {
    int place = open(folder, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), file, is_written, failure;
    if (place < 0) return -1;
    file = openat(place, draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    is_written = file >= 0 && write_all(file, parts, num) == 0;
    failure = errno;
    if (file >= 0 && close(file) < 0 && is_written) is_written = 0, failure = errno;
    if (is_written && renameat(place, draft, place, name) < 0) is_written = 0, failure = errno;
    close(place);
    errno = failure;
    return is_written ? 0 : -1;
}

static PyObject *write_file(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *given[3], *names[3] = {0}, *chunks_given, *chunks = NULL;
    Py_buffer *buffers = NULL;
    struct iovec *parts = NULL;
    Py_ssize_t num = 0, num_held = 0;
    int failure = 0;
    if (!PyArg_ParseTuple(args, "OOOO", &given[0], &given[1], &given[2], &chunks_given)) return NULL;
    for (int i = 0; i < 3; i++)
        if (!PyUnicode_FSConverter(given[i], &names[i])) goto done;
    chunks = PySequence_Fast(chunks_given, "chunks are a list of bytes");
    if (chunks == NULL) goto done;
    num = PySequence_Fast_GET_SIZE(chunks);
    buffers = PyMem_New(Py_buffer, num ? num : 1);
    parts = PyMem_New(struct iovec, num ? num : 1);
    if (buffers == NULL || parts == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; num_held < num; num_held++) {
        PyObject *chunk = PySequence_Fast_GET_ITEM(chunks, num_held);
        if (PyObject_GetBuffer(chunk, &buffers[num_held], PyBUF_SIMPLE) < 0) goto done;
        parts[num_held] = (struct iovec){buffers[num_held].buf, buffers[num_held].len};
    }
    Py_BEGIN_ALLOW_THREADS
    if (write_to(PyBytes_AS_STRING(names[0]), PyBytes_AS_STRING(names[1]), PyBytes_AS_STRING(names[2]), parts, num) < 0)
        failure = errno;
    Py_END_ALLOW_THREADS
    if (failure) {
        errno = failure;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, given[0]);
    }
done:
    while (num_held) PyBuffer_Release(&buffers[--num_held]);
    PyMem_Free(buffers), PyMem_Free(parts);
    Py_XDECREF(chunks);
    for (int i = 0; i < 3; i++) Py_XDECREF(names[i]);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"read_file", read_file, METH_VARARGS, "(path, most) -> its size, whether it is a file, and its bytes or None."},
    {"write_file", write_file, METH_VARARGS, "(folder, draft, name, chunks): a new file, named when it is whole."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_files",
    .m_doc = "Whole small files by one call.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__files(void) { return PyModuleDef_Init(&module); }
