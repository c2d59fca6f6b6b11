/* Copies rows of a matrix from random places into one block, with the memory asked for ahead.

   A random row waits for main memory, and a plain loop over rows waits for one after the other.
   Here the row AHEAD places further on is already on its way while a row is copied.

   Every index is checked before an address is made of it, and only the checked value is used, so
   that not even another thread that changes the indices can make this read outside the matrix.
   orlog/loaders/gathering.py is the only caller; it works without this file, more slowly. */

#include <pyconfig.h>
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030B0000 /* one binary for Python 3.11 and all later ones */
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

#define RING 16      /* a power of two */
#define AHEAD 12     /* rows, fewer than RING */
#define LINE 64      /* bytes of a cache line */
#define FETCHED 1024 /* bytes of a row asked for ahead: the hardware sees the rest coming */

/* Copies rows and returns -1, or returns the place of the first index that is out of range. */
static int64_t copy_rows(const char *source, int64_t rows, int64_t stride, int64_t row_bytes,
                         const int64_t *indices, int64_t count, char *target)
{
    const char *ring[RING];
    const int64_t fetched = row_bytes < FETCHED ? row_bytes : FETCHED;
    for (int64_t place = 0; place < count + AHEAD; place++) {
        if (place < count) {
            const int64_t index = *(const volatile int64_t *)(indices + place);
            if (index < 0 || index >= rows)
                return place;
            const char *row = source + index * stride;
            for (int64_t byte = 0; byte < fetched; byte += LINE)
                PREFETCH(row + byte);
            PREFETCH(row + fetched - 1); /* rows start inside of lines */
            ring[place % RING] = row;
        }
        if (place >= AHEAD)
            memcpy(target + (place - AHEAD) * row_bytes, ring[(place - AHEAD) % RING],
                   (size_t)row_bytes);
    }
    return -1;
}

/* copy_rows(source, rows, stride, row_bytes, indices, count, target): addresses and sizes in bytes.
   Other threads run meanwhile. */
static PyObject *copy_rows_from_python(PyObject *module, PyObject *const *arguments,
                                       Py_ssize_t given)
{
    (void)module;
    long long values[7];
    if (given != 7) {
        PyErr_SetString(PyExc_TypeError, "copy_rows takes 7 integers");
        return NULL;
    }
    for (int one = 0; one < 7; one++) {
        values[one] = PyLong_AsLongLong(arguments[one]);
        if (values[one] == -1 && PyErr_Occurred())
            return NULL;
    }
    int64_t wrong;
    Py_BEGIN_ALLOW_THREADS
    wrong = copy_rows((const char *)(intptr_t)values[0], values[1], values[2], values[3],
                      (const int64_t *)(intptr_t)values[4], values[5],
                      (char *)(intptr_t)values[6]);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(wrong);
}

static PyMethodDef methods[] = {
    {"copy_rows", (PyCFunction)(void (*)(void))copy_rows_from_python, METH_FASTCALL,
     "Copy rows from random places; see loaders/_gather.c."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_gather", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__gather(void) { return PyModuleDef_Init(&definition); }
