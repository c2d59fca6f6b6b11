/* Keeps the steps of an episode whose observations and actions are rows of numbers.

   A row is copied if it is an array of numpy's own type with the dtype that was given, one
   dimension, numbers that follow each other, and the bytes of a row; or the bytes themselves.
   Anything else is left alone and reported, and the caller looks at it more closely.
   orlog/datasets/recording/rows.py is the only caller; it works without this file, more slowly. */

#include <pyconfig.h>
#ifdef Py_GIL_DISABLED
#error "this file relies on the lock of the interpreter; orlog works without it"
#endif
#define Py_LIMITED_API 0x030B0000 /* one binary for Python 3.11 and all later ones */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#define FIRST_ROWS 64          /* room at the start */
#define LARGEST_ROW (1L << 30) /* bytes */

/* What `__array_struct__` of an array holds, as "The array interface protocol" of numpy defines it. */
typedef struct {
    int two;
    int dimensions;
    char typekind;
    int itemsize;
    int flags;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    void *data;
    PyObject *descr;
} ArrayInterface;

#define IS_CONTIGUOUS 1 /* of flags */

typedef struct {
    PyObject *dtype; /* NULL: of rewards */
    Py_ssize_t row_bytes;
    Py_ssize_t room; /* in rows */
    char *data;
} Column;

typedef struct {
    PyObject_HEAD
    PyObject *array_type, *double_type, *no; /* numpy's ndarray, float64 and False */
    PyObject *dtype_name, *struct_name;
    Column observations, actions, rewards;
    Py_ssize_t steps;
    int has_action;   /* whether that of the next step is kept */
    Py_ssize_t first; /* 1 if the observation of the reset is kept, else 0 */
} Rows;

/* Copies a row to its place; returns 1, or -1 with an error where there is no memory. */
static int put(Column *column, Py_ssize_t place, const void *row)
{
    if (place >= column->room) {
        const Py_ssize_t room = place < FIRST_ROWS ? FIRST_ROWS : 2 * place;
        if (room > PY_SSIZE_T_MAX / (column->row_bytes + 1)) {
            PyErr_NoMemory();
            return -1;
        }
        char *data = PyMem_Realloc(column->data, (size_t)(room * column->row_bytes));
        if (data == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        column->data = data;
        column->room = room;
    }
    if (column->row_bytes > 0)
        memcpy(column->data + place * column->row_bytes, row, (size_t)column->row_bytes);
    return 1;
}

/* Copies a value to its place if it fits; returns 1, 0 if it does not fit, -1 with an error. */
static int put_value(const Rows *self, Column *column, Py_ssize_t place, PyObject *value)
{
    if ((PyObject *)Py_TYPE(value) != self->array_type) {
        if (PyBytes_CheckExact(value) && PyBytes_Size(value) == column->row_bytes)
            return put(column, place, PyBytes_AsString(value));
        return 0;
    }
    PyObject *dtype = PyObject_GetAttr(value, self->dtype_name);
    if (dtype == NULL)
        return -1;
    Py_DECREF(dtype); /* only compared */
    if (dtype != column->dtype)
        return 0;
    PyObject *capsule = PyObject_GetAttr(value, self->struct_name);
    if (capsule == NULL)
        return -1;
    int done = -1;
    const ArrayInterface *array = PyCapsule_GetPointer(capsule, NULL);
    if (array != NULL) {
        done = array->two == 2 && array->dimensions == 1 && (array->flags & IS_CONTIGUOUS)
               && array->shape[0] == column->row_bytes / array->itemsize;
        if (done)
            done = put(column, place, array->data);
    }
    Py_DECREF(capsule);
    return done;
}

/* start(observation): forget all steps; an episode starts from this observation.
   Returns whether it fits. */
static PyObject *start(PyObject *object, PyObject *observation)
{
    Rows *self = (Rows *)object;
    self->steps = self->first = self->has_action = 0;
    const int done = put_value(self, &self->observations, 0, observation);
    if (done < 0)
        return NULL;
    self->first = done;
    return PyBool_FromLong(done);
}

/* keep_action(action): keep the action of the next step, in place of one that was never taken.
   Returns whether it fits. */
static PyObject *keep_action(PyObject *object, PyObject *action)
{
    Rows *self = (Rows *)object;
    const int done = put_value(self, &self->actions, self->steps, action);
    if (done > 0)
        self->has_action = 1;
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* keep_result(result, block_steps): keep what `step` returned.
   Returns None if it does not fit, or no action is kept for it: then nothing was kept. Returns True if nothing else is to be
   done; False if a flag may be set, or so many steps are kept. */
static PyObject *keep_result(PyObject *object, PyObject *const *arguments, Py_ssize_t given)
{
    Rows *self = (Rows *)object;
    if (given != 2) {
        PyErr_SetString(PyExc_TypeError, "keep_result takes a result and a number of steps");
        return NULL;
    }
    PyObject *result = arguments[0];
    const Py_ssize_t block_steps = PyLong_AsSsize_t(arguments[1]);
    if (block_steps == -1 && PyErr_Occurred())
        return NULL;
    if (!self->has_action || !PyTuple_CheckExact(result) || PyTuple_Size(result) != 5)
        Py_RETURN_NONE;
    PyObject *reward = PyTuple_GetItem(result, 1);
    PyObject *terminated = PyTuple_GetItem(result, 2), *truncated = PyTuple_GetItem(result, 3);
    if (!PyFloat_CheckExact(reward) && (PyObject *)Py_TYPE(reward) != self->double_type)
        Py_RETURN_NONE;
    const double number = PyFloat_AsDouble(reward);
    int done = put(&self->rewards, self->steps, &number);
    if (done > 0)
        done = put_value(self, &self->observations, self->steps + self->first,
                         PyTuple_GetItem(result, 0));
    if (done < 0)
        return NULL;
    if (done == 0)
        Py_RETURN_NONE;
    self->steps++;
    self->has_action = 0;
    return PyBool_FromLong((terminated == Py_False || terminated == self->no)
                           && (truncated == Py_False || truncated == self->no)
                           && self->steps < block_steps);
}

static PyObject *bytes_of(const Column *column, Py_ssize_t rows)
{
    return PyBytes_FromStringAndSize(column->data, rows * column->row_bytes);
}

/* take(): forget all steps; return the bytes of observations, actions and rewards. */
static PyObject *take(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    Rows *self = (Rows *)object;
    PyObject *observations = bytes_of(&self->observations, self->steps + self->first);
    PyObject *actions = bytes_of(&self->actions, self->steps);
    PyObject *rewards = bytes_of(&self->rewards, self->steps);
    PyObject *taken = NULL;
    if (observations != NULL && actions != NULL && rewards != NULL)
        taken = PyTuple_Pack(3, observations, actions, rewards);
    Py_XDECREF(observations);
    Py_XDECREF(actions);
    Py_XDECREF(rewards);
    if (taken != NULL)
        self->steps = self->first = self->has_action = 0;
    return taken;
}

static Py_ssize_t count_steps(PyObject *object) { return ((Rows *)object)->steps; }

/* Rows(ndarray, float64, False of numpy, dtype and bytes of an observation, those of an action) */
static PyObject *new_rows(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    (void)names;
    PyObject *array_type, *double_type, *no, *observation_dtype, *action_dtype;
    Py_ssize_t observation_bytes, action_bytes;
    if (!PyArg_ParseTuple(arguments, "OOOOnOn", &array_type, &double_type, &no, &observation_dtype,
                          &observation_bytes, &action_dtype, &action_bytes))
        return NULL;
    if (observation_bytes < 0 || observation_bytes > LARGEST_ROW || action_bytes < 0
        || action_bytes > LARGEST_ROW) {
        PyErr_SetString(PyExc_ValueError, "rows of so many bytes cannot be kept");
        return NULL;
    }
    const allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Rows *self = (Rows *)allocate(type, 0); /* filled with zeros */
    if (self == NULL)
        return NULL;
    self->array_type = Py_NewRef(array_type);
    self->double_type = Py_NewRef(double_type);
    self->no = Py_NewRef(no);
    self->observations.dtype = Py_NewRef(observation_dtype);
    self->observations.row_bytes = observation_bytes;
    self->actions.dtype = Py_NewRef(action_dtype);
    self->actions.row_bytes = action_bytes;
    self->rewards.row_bytes = sizeof(double);
    self->dtype_name = PyUnicode_InternFromString("dtype");
    self->struct_name = PyUnicode_InternFromString("__array_struct__");
    if (self->dtype_name == NULL || self->struct_name == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void delete_rows(PyObject *object)
{
    Rows *self = (Rows *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->array_type);
    Py_XDECREF(self->double_type);
    Py_XDECREF(self->no);
    Py_XDECREF(self->dtype_name);
    Py_XDECREF(self->struct_name);
    Py_XDECREF(self->observations.dtype);
    Py_XDECREF(self->actions.dtype);
    PyMem_Free(self->observations.data);
    PyMem_Free(self->actions.data);
    PyMem_Free(self->rewards.data);
    const freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type); /* an object of such a type owns it */
}

static PyMethodDef methods[] = {
    {"start", start, METH_O, "Start an episode; see datasets/recording/_rows.c."},
    {"keep_action", keep_action, METH_O, "Keep an action; see datasets/recording/_rows.c."},
    {"keep_result", (PyCFunction)(void (*)(void))keep_result, METH_FASTCALL,
     "Keep the result of a step; see datasets/recording/_rows.c."},
    {"take", take, METH_NOARGS, "Return and forget all steps; see datasets/recording/_rows.c."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, (void *)new_rows},
    {Py_tp_dealloc, (void *)delete_rows},
    {Py_tp_methods, methods},
    {Py_sq_length, (void *)count_steps},
    {0, NULL},
};

static PyType_Spec type_spec = {
    "orlog.datasets.recording._rows.Rows", sizeof(Rows), 0, Py_TPFLAGS_DEFAULT, type_slots,
};

/* rows.py leaves alone what was compiled from another text than it knows. */
static int fill_module(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &type_spec, NULL);
    if (type == NULL)
        return -1;
    const int failed = PyModule_AddObjectRef(module, "Rows", type);
    Py_DECREF(type);
    return failed < 0 ? -1 : PyModule_AddIntConstant(module, "version", 1);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)fill_module},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_rows", NULL, 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&definition); }
