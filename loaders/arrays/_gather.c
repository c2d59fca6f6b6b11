/* Copies rows of a matrix from random places into one block, with the memory asked for ahead.

   A random row waits for main memory, and a plain loop over rows waits for one after the other.
   Here rows further on are already on their way while a row is copied: as many as fit into a part
   of the nearest cache, so that none is pushed out before its turn.

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
#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

#define RING 64       /* rows that are on their way at most; a power of two */
#define ON_WAY 6144   /* bytes that are on their way */
#define FETCHED 1024  /* bytes of a row asked for ahead: the hardware sees the rest coming */
#define LINE 64       /* bytes of a cache line */

/* Copies rows and returns -1, or returns the place of the first index that is out of range. */
static int64_t copy_rows(const char *source, int64_t rows, int64_t stride, int64_t row_bytes,
                         const int64_t *indices, int64_t count, char *target)
{
    const char *ring[RING];
    const int64_t fetched = row_bytes < FETCHED ? row_bytes : FETCHED;
    const int64_t ahead = fetched > ON_WAY / (RING - 1) ? ON_WAY / fetched : RING - 1;
    for (int64_t place = 0; place < count + ahead; place++) {
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
        if (place >= ahead)
            memcpy(target + (place - ahead) * row_bytes, ring[(place - ahead) % RING],
                   (size_t)row_bytes);
    }
    return -1;
}

/* Tells the system which pages of a mapped file will be read, so that the disk reads many at once
   instead of one after the other. Only a hint: what it does not know, it leaves alone. */
static void expect_rows(const char *source, int64_t rows, int64_t stride, int64_t row_bytes,
                        const int64_t *indices, int64_t count)
{
#if defined(MADV_WILLNEED)
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int64_t place = 0; place < count; place++) {
        const int64_t index = *(const volatile int64_t *)(indices + place);
        if (index < 0 || index >= rows)
            return;
        const uintptr_t row = (uintptr_t)source + (uintptr_t)(index * stride);
        const uintptr_t start = row / page * page;
        (void)madvise((void *)start, (size_t)(row + (uintptr_t)row_bytes - start), MADV_WILLNEED);
    }
#endif
}

/* copy_rows(source, rows, stride, row_bytes, indices, count, target, is_on_disk): addresses and
   sizes in bytes. Other threads run meanwhile. */
static PyObject *copy_rows_from_python(PyObject *module, PyObject *const *arguments,
                                       Py_ssize_t given)
{
    (void)module;
    long long values[8];
    if (given != 8) {
        PyErr_SetString(PyExc_TypeError, "copy_rows takes 8 integers");
        return NULL;
    }
    for (int one = 0; one < 8; one++) {
        values[one] = PyLong_AsLongLong(arguments[one]);
        if (values[one] == -1 && PyErr_Occurred())
            return NULL;
    }
    int64_t wrong;
    Py_BEGIN_ALLOW_THREADS
    if (values[7])
        expect_rows((const char *)(intptr_t)values[0], values[1], values[2], values[3],
                    (const int64_t *)(intptr_t)values[4], values[5]);
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

/* gathering.py leaves alone what was compiled from another text than it knows. */
static int add_version(PyObject *module) { return PyModule_AddIntConstant(module, "version", 2); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_version},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_gather", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__gather(void) { return PyModuleDef_Init(&definition); }
