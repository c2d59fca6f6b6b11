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
#define AHEAD 24      /* single numbers that are on their way */
#define FEW 96        /* bytes that are copied without a call */

/* Copies bytes; few of them without a call, which would take longer than they do. */
static inline void copy_bytes(char *target, const char *source, int64_t bytes)
{
    if (bytes > FEW) {
        memcpy(target, source, (size_t)bytes);
        return;
    }
    if (bytes >= 16) { /* the last 16 may overlap those before */
        for (int64_t place = 0; place + 16 <= bytes; place += 16)
            memcpy(target + place, source + place, 16);
        if (bytes % 16)
            memcpy(target + bytes - 16, source + bytes - 16, 16);
        return;
    }
    for (; bytes >= 4; bytes -= 4, target += 4, source += 4)
        memcpy(target, source, 4);
    for (; bytes > 0; bytes--)
        *target++ = *source++;
}

/* Asks for the beginning of a row, and returns it. */
static inline const char *expected_row(const char *row, int64_t fetched)
{
    for (int64_t byte = 0; byte < fetched; byte += LINE)
        PREFETCH(row + byte);
    PREFETCH(row + fetched - 1); /* rows start inside of lines */
    return row;
}

/* Copies rows of 4 bytes, as below, without the bookkeeping that would take longer than they do. */
static int64_t copy_numbers(const char *source, int64_t rows, int64_t stride, const int64_t *indices,
                            int64_t count, char *target)
{
    for (int64_t place = 0; place < count; place++) {
        if (place + AHEAD < count) { /* what is only fetched ahead may lie anywhere */
            const uint64_t from = (uint64_t)indices[place + AHEAD] * (uint64_t)stride;
            PREFETCH((const char *)((uintptr_t)source + (uintptr_t)from));
        }
        const int64_t index = *(const volatile int64_t *)(indices + place);
        if (index < 0 || index >= rows)
            return place;
        memcpy(target + 4 * place, source + index * stride, 4);
    }
    return -1;
}

/* Copies rows and returns -1, or returns the place of the first index that is out of range. */
static int64_t copy_rows(const char *source, int64_t rows, int64_t stride, int64_t row_bytes,
                         const int64_t *indices, int64_t count, char *target)
{
    if (row_bytes == 4)
        return copy_numbers(source, rows, stride, indices, count, target);
    const char *ring[RING];
    const int64_t fetched = row_bytes < FETCHED ? row_bytes : FETCHED;
    const int64_t ahead = fetched > ON_WAY / (RING - 1) ? ON_WAY / fetched : RING - 1;
    for (int64_t place = 0; place < count + ahead; place++) {
        if (place < count) {
            const int64_t index = *(const volatile int64_t *)(indices + place);
            if (index < 0 || index >= rows)
                return place;
            ring[place % RING] = expected_row(source + index * stride, fetched);
        }
        if (place >= ahead)
            copy_bytes(target + (place - ahead) * row_bytes, ring[(place - ahead) % RING],
                       row_bytes);
    }
    return -1;
}

/* Copies the rows at some offsets from each of some rows, or the nearest ones between a first and a last
   row of its own, and notes which are those that were asked for; the others are zeros if `zeros` says so.
   Returns -1, or the place of the first item of which a row is out of range. */
static int64_t copy_around(const char *source, int64_t rows, int64_t stride, int64_t row_bytes,
                           const int64_t *chosen, const int64_t *firsts, const int64_t *lasts,
                           int64_t count, int64_t before_last, const int64_t *offsets, int64_t slots,
                           char *target, char *valid, int zeros)
{
    const int64_t fetched = row_bytes < FETCHED ? row_bytes : FETCHED;
    const int64_t wanted_bytes = slots * fetched;
    const int64_t ahead = wanted_bytes > 0 && wanted_bytes < ON_WAY ? ON_WAY / wanted_bytes : 1;
    int64_t lowest = slots > 0 ? offsets[0] : 0, highest = lowest;
    for (int64_t slot = 1; slot < slots; slot++) {
        lowest = offsets[slot] < lowest ? offsets[slot] : lowest;
        highest = offsets[slot] > highest ? offsets[slot] : highest;
    }
    for (int64_t place = 0; place < count + ahead; place++) {
        if (place < count) { /* what is only fetched ahead may lie anywhere */
            const uint64_t row = (uint64_t)chosen[place];
            for (int64_t slot = 0; slot < slots; slot++) {
                const uint64_t from = (row + (uint64_t)offsets[slot]) * (uint64_t)stride;
                expected_row((const char *)((uintptr_t)source + (uintptr_t)from), fetched);
            }
        }
        if (place < ahead)
            continue;
        const int64_t item = place - ahead;
        const int64_t first = *(const volatile int64_t *)(firsts + item);
        const uint64_t end = (uint64_t)*(const volatile int64_t *)(lasts + item);
        const int64_t last = (int64_t)(end - (uint64_t)before_last);
        const uint64_t row = (uint64_t)*(const volatile int64_t *)(chosen + item);
        const int64_t earliest = (int64_t)(row + (uint64_t)lowest);
        const int64_t latest = (int64_t)(row + (uint64_t)highest);
        if (earliest >= first && latest <= last && earliest <= latest) { /* none is replaced */
            for (int64_t slot = 0; slot < slots; slot++, target += row_bytes) {
                const int64_t wanted = (int64_t)(row + (uint64_t)offsets[slot]);
                if (wanted < 0 || wanted >= rows)
                    return item;
                copy_bytes(target, source + wanted * stride, row_bytes);
            }
            memset(valid, 1, (size_t)slots);
            valid += slots;
            continue;
        }
        for (int64_t slot = 0; slot < slots; slot++) {
            const int64_t wanted = (int64_t)(row + (uint64_t)offsets[slot]);
            const int64_t later = wanted > first ? wanted : first;
            const int64_t nearest = later < last ? later : last;
            if (nearest < 0 || nearest >= rows)
                return item;
            *valid++ = nearest == wanted;
            if (zeros && nearest != wanted)
                memset(target, 0, (size_t)row_bytes);
            else
                copy_bytes(target, source + nearest * stride, row_bytes);
            target += row_bytes;
        }
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

/* Reads the arguments of a function that takes integers alone; returns 0 with an exception set if they are not. */
static int as_integers(PyObject *const *arguments, Py_ssize_t given, int wanted, long long *values)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "expected %d integers", wanted);
        return 0;
    }
    for (int one = 0; one < wanted; one++) {
        values[one] = PyLong_AsLongLong(arguments[one]);
        if (values[one] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

/* copy_rows(source, rows, stride, row_bytes, indices, count, target, is_on_disk): addresses and
   sizes in bytes. Other threads run meanwhile. */
static PyObject *copy_rows_from_python(PyObject *module, PyObject *const *arguments,
                                       Py_ssize_t given)
{
    (void)module;
    long long values[8];
    if (!as_integers(arguments, given, 8, values))
        return NULL;
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

/* copy_around(source, rows, stride, row_bytes, chosen, firsts, lasts, count, before_last, offsets, slots,
   target, valid, zeros): addresses and sizes in bytes. Other threads run meanwhile. */
static PyObject *copy_around_from_python(PyObject *module, PyObject *const *arguments,
                                         Py_ssize_t given)
{
    (void)module;
    long long values[14];
    if (!as_integers(arguments, given, 14, values))
        return NULL;
    int64_t wrong;
    Py_BEGIN_ALLOW_THREADS
    wrong = copy_around((const char *)(intptr_t)values[0], values[1], values[2], values[3],
                        (const int64_t *)(intptr_t)values[4], (const int64_t *)(intptr_t)values[5],
                        (const int64_t *)(intptr_t)values[6], values[7], values[8],
                        (const int64_t *)(intptr_t)values[9], values[10],
                        (char *)(intptr_t)values[11], (char *)(intptr_t)values[12],
                        values[13] != 0);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(wrong);
}

static PyMethodDef methods[] = {
    {"copy_rows", (PyCFunction)(void (*)(void))copy_rows_from_python, METH_FASTCALL,
     "Copy rows from random places; see loaders/_gather.c."},
    {"copy_around", (PyCFunction)(void (*)(void))copy_around_from_python, METH_FASTCALL,
     "Copy rows around rows at random places; see loaders/_gather.c."},
    {NULL, NULL, 0, NULL},
};

/* gathering.py leaves alone what was compiled from another text than it knows. */
static int add_version(PyObject *module) { return PyModule_AddIntConstant(module, "version", 3); }

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
