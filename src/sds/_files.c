/* Whole small files: read, or written and named, while Python's lock is let go of once (twice to read larger ones).

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

/* A file on its way into memory. */
typedef struct {
    const char *path;
    long long most, size; /* bytes that are allowed, and that it has */
    char *into;
    Py_ssize_t room, done;
    int file, is_file;
} Reading;

static int is_wanted(const Reading *reading) {
    return reading->is_file && 0 < reading->size && reading->size <= reading->most;
}

/* Opens the file if need be, and reads all of it if there is room; fewer bytes than it said only where it ends.
   0, or the error's number; with EINTR it goes on from there. */
static int go_on(Reading *reading) {
    struct stat facts;
    if (reading->file < 0) {
        const int file = open(reading->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* else a pipe waits for its writer */
        if (file < 0) return errno;
        if (fstat(file, &facts) < 0) {
            const int failure = errno;
            close(file);
            return failure;
        }
        reading->file = file, reading->is_file = S_ISREG(facts.st_mode), reading->size = facts.st_size;
    }
    if (!is_wanted(reading) || reading->size > reading->room) return 0;
    while (reading->done < reading->size) {
        const ssize_t num = read(reading->file, reading->into + reading->done, reading->size - reading->done);
        if (num < 0) return errno;
        if (num == 0) break;
        reading->done += num;
    }
    return 0;
}

/* The same without Python's lock, which signals are seen to with. -1: there is an error. */
static int read_on(Reading *reading, PyObject *name) {
    int failure;
    do {
        Py_BEGIN_ALLOW_THREADS
        failure = go_on(reading);
        const int needs_room = !failure && is_wanted(reading) && reading->size > reading->room;
        if (reading->file >= 0 && failure != EINTR && !needs_room) close(reading->file), reading->file = -1;
        Py_END_ALLOW_THREADS
        if (failure == EINTR && PyErr_CheckSignals() < 0) return -1;
    } while (failure == EINTR);
    if (!failure) return 0;
    errno = failure;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name);
    return -1;
}

static PyObject *read_file(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *given, *path, *data = NULL, *found = NULL;
    Reading reading = {.file = -1, .room = ROOM};
    if (!PyArg_ParseTuple(args, "OL", &given, &reading.most) || !PyUnicode_FSConverter(given, &path)) return NULL;
    reading.path = PyBytes_AS_STRING(path);
    for (int i = 0; i < 2; i++) { /* a second time where it is larger */
        Py_XSETREF(data, PyBytes_FromStringAndSize(NULL, reading.room));
        if (data == NULL) break;
        reading.into = PyBytes_AS_STRING(data);
        if (read_on(&reading, given) < 0 || reading.file < 0) break;
        if (reading.size > PY_SSIZE_T_MAX) {
            PyErr_NoMemory();
            break;
        }
        reading.room = (Py_ssize_t)reading.size;
    }
    if (!PyErr_Occurred()) {
        PyObject *is_file = reading.is_file ? Py_True : Py_False;
        if (!is_wanted(&reading)) found = Py_BuildValue("LOO", reading.size, is_file, Py_None);
        else if (_PyBytes_Resize(&data, reading.done) == 0) found = Py_BuildValue("LOO", reading.size, is_file, data);
    }
    if (reading.file >= 0) close(reading.file); /* there was a signal, or no memory */
    Py_XDECREF(data);
    Py_DECREF(path);
    return found;
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
    int place, file, is_written, failure;
    do place = open(folder, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    while (place < 0 && errno == EINTR);
    if (place < 0) return -1;
    do file = openat(place, draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    while (file < 0 && errno == EINTR);
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
    chunks = PySequence_Tuple(chunks_given); /* which nobody changes meanwhile */
    if (chunks == NULL) goto done;
    num = PyTuple_GET_SIZE(chunks);
    buffers = PyMem_New(Py_buffer, num ? num : 1);
    parts = PyMem_New(struct iovec, num ? num : 1);
    if (buffers == NULL || parts == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; num_held < num; num_held++) {
        PyObject *chunk = PyTuple_GET_ITEM(chunks, num_held);
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
