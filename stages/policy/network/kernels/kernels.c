// Hidden layers and PPO's clipped loss in one pass each, for perceptrons whose products are too small to hide the calls.
//
// Optional: `stages/trainer/fast/perceptrons.py` computes the same in NumPy, with the derivation and the names. Arrays
// are checked here: of float32, rows contiguous, of the shapes that belong together. The interpreter's lock is kept, as a call
// takes a tenth of a millisecond.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

enum { TANH = 1, RELU = 2, SWISH = 3 };

// y [rows, columns] = f(a · b + bias), with a[i, k] at a[i * a_row + k * a_column]; columns are a multiple of 16.
typedef struct {
    long rows, columns, inner, a_row, a_column;
    const float *a, *b, *bias;
    float *y, *z;
    int activation;
} product;

#define JOIN(a, b) a##b
#if defined(__x86_64__)
#define NAME(name) JOIN(name, _avx512)
#define TARGET __attribute__((target("avx512f,fma")))
#define WIDTH 16
#define ROWS 6
#define VECTORS 4
#include "vectors.h"
#define NAME(name) JOIN(name, _avx2)
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 8
#define ROWS 6
#define VECTORS 2
#include "vectors.h"
#endif
#define NAME(name) JOIN(name, _any)
#define TARGET
#define WIDTH 4
#define ROWS 4
#define VECTORS 2
#include "vectors.h"

static void (*multiply)(const product *) = multiply_any;
static void (*times_slope)(long, long, int, const float *, float *, float *) = times_slope_any;

static double (*squares)(long, const float *) = squares_any;
static void (*scale)(long, float *, float) = scale_any;

static void choose(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        multiply = multiply_avx512, times_slope = times_slope_avx512, squares = squares_avx512, scale = scale_avx512;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        multiply = multiply_avx2, times_slope = times_slope_avx2, squares = squares_avx2, scale = scale_avx2;
#endif
}

// Arrays that are held for the time of a call.

#define MOST 24
typedef struct {
    Py_buffer views[MOST];
    int count;
} held;

static void let_go(held *all) {
    while (all->count) PyBuffer_Release(&all->views[--all->count]);
}

// An array of floats, of doubles, or of int64 ("l" or "q"); NULL with an error set where it is none.
static Py_buffer *hold(held *all, PyObject *object, int writable, char kind) {
    if (all->count == MOST) return PyErr_SetString(PyExc_ValueError, "too many arrays"), NULL;
    Py_buffer *view = &all->views[all->count];
    if (PyObject_GetBuffer(object, view, PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0))) return NULL;
    all->count++;
    char format = view->format ? view->format[0] : 'B';
    if (kind == 'd' ? format != 'd' : kind == 'f' ? format != 'f' : view->itemsize != 8 || (format != 'l' && format != 'q'))
        return PyErr_Format(PyExc_ValueError, "expected an array of %s, got '%c'", kind == 'd' ? "float64" : kind == 'f' ? "float32" : "int64", format), NULL;
    return view;
}

// Floats of a shape; the last of the sizes may be -1 for one that is not checked. All but x are contiguous.
static float *floats(held *all, PyObject *object, int writable, int n, long s0, long s1, long s2) {
    Py_buffer *view = hold(all, object, writable, 'f');
    if (!view) return NULL;
    long sizes[3] = {s0, s1, s2};
    int right = view->ndim == n && PyBuffer_IsContiguous(view, 'C');
    for (int i = 0; right && i < n; i++) right = view->shape[i] == sizes[i];
    if (!right) return PyErr_Format(PyExc_ValueError, "expected contiguous floats [%ld, %ld, %ld] of %d axes", s0, s1, s2, n), NULL;
    return view->buf;
}

typedef struct {
    long towers, rows, inputs, units, row, tower;
    const float *x, *weight;
} layer;

// The input x [R, V] or [T, R, V], whose last axis is contiguous, and the weight [T, V, U] of a layer.
static int hold_layer(held *all, PyObject *x, PyObject *weight, layer *of) {
    Py_buffer *in = hold(all, x, 0, 'f'), *w = in ? hold(all, weight, 0, 'f') : NULL;
    if (!w) return 0;
    int n = in->ndim;
    if (w->ndim != 3 || !PyBuffer_IsContiguous(w, 'C') || n < 2 || n > 3 || in->shape[n - 1] != w->shape[1] ||
        (in->strides[n - 1] != 4 && in->shape[n - 1] > 1) || in->strides[n - 2] % 4 || (n == 3 && (in->shape[0] != w->shape[0] || in->strides[0] % 4)) ||
        w->shape[2] % 16)
        return PyErr_SetString(PyExc_ValueError, "x is not [R, V] or [T, R, V], weight not [T, V, U], or U no multiple of 16"), 0;
    *of = (layer){w->shape[0], in->shape[n - 2], w->shape[1], w->shape[2], in->strides[n - 2] / 4, n == 3 ? in->strides[0] / 4 : 0, in->buf, w->buf};
    return 1;
}

static int activation_of(PyObject *number) {
    long found = PyLong_AsLong(number);
    if (!PyErr_Occurred() && (found < TANH || found > SWISH)) PyErr_SetString(PyExc_ValueError, "unknown activation");
    return (int)found;
}

PyDoc_STRVAR(forward_doc, "forward(x, weight, bias, z, y, activation): write y = f(z) with z = x @ weight + bias.\n\n"
             "z is written for swish alone.");
static PyObject *forward(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    held all = {.count = 0};
    layer l;
    const float *bias;
    float *z, *y;
    if (n != 6) return PyErr_SetString(PyExc_TypeError, "forward takes 6 arguments"), NULL;
    int activation = activation_of(args[5]);
    int right = !PyErr_Occurred() && hold_layer(&all, args[0], args[1], &l) && (bias = floats(&all, args[2], 0, 3, l.towers, 1, l.units)) &&
                (z = floats(&all, args[3], 1, 3, l.towers, l.rows, l.units)) && (y = floats(&all, args[4], 1, 3, l.towers, l.rows, l.units));
    for (long t = 0; right && t < l.towers; t++) {
        long at = t * l.rows * l.units;
        multiply(&(product){l.rows, l.units, l.inputs, l.row, 1, l.x + t * l.tower, l.weight + t * l.inputs * l.units, bias + t * l.units, y + at, z + at, activation});
    }
    let_go(&all);
    if (!right) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(backward_doc, "backward(x, weight, kept, deltas, of_weight, of_bias, of_x, transposed, activation): write gradients.\n\n"
             "deltas, the gradient of y, becomes that of z; kept is y, or z for swish. of_x is None where it is not asked for, and\n"
             "transposed [V * U] holds what is anything before and after.");
static PyObject *backward(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    held all = {.count = 0};
    layer l;
    const float *kept;
    float *deltas, *of_weight, *of_bias, *of_x = NULL, *turned = NULL;
    if (n != 9) return PyErr_SetString(PyExc_TypeError, "backward takes 9 arguments"), NULL;
    int activation = activation_of(args[8]), deeper = args[6] != Py_None;
    int right = !PyErr_Occurred() && hold_layer(&all, args[0], args[1], &l) && (kept = floats(&all, args[2], 0, 3, l.towers, l.rows, l.units)) &&
                (deltas = floats(&all, args[3], 1, 3, l.towers, l.rows, l.units)) && (of_weight = floats(&all, args[4], 1, 3, l.towers, l.inputs, l.units)) &&
                (of_bias = floats(&all, args[5], 1, 3, l.towers, 1, l.units));
    if (right && deeper)
        right = (of_x = floats(&all, args[6], 1, 3, l.towers, l.rows, l.inputs)) && (turned = floats(&all, args[7], 1, 1, l.inputs * l.units, 0, 0));
    if (right && deeper && l.inputs % 16) PyErr_SetString(PyExc_ValueError, "V is no multiple of 16"), right = 0;
    for (long t = 0; right && t < l.towers; t++) {
        const float *x = l.x + t * l.tower, *w = l.weight + t * l.inputs * l.units;
        float *delta = deltas + t * l.rows * l.units;
        times_slope(l.rows, l.units, activation, kept + t * l.rows * l.units, delta, of_bias + t * l.units);
        multiply(&(product){l.inputs, l.units, l.rows, 1, l.row, x, delta, NULL, of_weight + t * l.inputs * l.units, NULL, 0});
        if (!deeper) continue;
        for (long i = 0; i < l.inputs; i++)
            for (long j = 0; j < l.units; j++) turned[j * l.inputs + i] = w[i * l.units + j];
        multiply(&(product){l.rows, l.inputs, l.units, l.units, 1, delta, turned, NULL, of_x + t * l.rows * l.inputs, NULL, 0});
    }
    let_go(&all);
    if (!right) return NULL;
    Py_RETURN_NONE;
}

// A matrix whose axes may have any strides, in elements: columns of a minibatch, seen with rows last.
typedef struct {
    const char *data;
    long height, across, along;
} columns;

static int hold_columns(held *all, PyObject *object, char kind, long rows, long height, columns *of) {
    Py_buffer *view = hold(all, object, 0, kind);
    if (!view) return 0;
    int flat = view->ndim == 1;
    if (view->ndim > 2 || view->ndim < 1 || view->shape[view->ndim - 1] != rows || (height >= 0 && (flat ? 1 : view->shape[0]) != height))
        return PyErr_Format(PyExc_ValueError, "expected columns [%ld, %ld]", height, rows), 0;
    *of = (columns){view->buf, flat ? 1 : view->shape[0], flat ? 0 : view->strides[0], view->strides[view->ndim - 1]};
    return 1;
}

static float at(const columns *of, long column, long row) { return *(const float *)(of->data + column * of->across + row * of->along); }

typedef struct {
    long rows, numbers, branches, columns; // numbers: continuous actions; columns: of log-probabilities
    int joint;
    double epsilon, beta, share;
    const long *sizes;
    const float *heads, *log_sigma;
    float *of_heads, *log_ratios, *of_log_sigma, *kept; // kept: of one row, log-probabilities, then probabilities
    columns drawn, penalties, old, advantages, *choices;
} loss;

// The log-probabilities of a row's action into `kept`, those of all its choices into `of_heads`; 0 for an unknown choice.
static int likelihood(const loss *l, long row) {
    for (long c = 0; c < l->numbers; c++) {
        float d = (at(&l->drawn, c, row) - l->heads[c * l->rows + row]) * expf(-l->log_sigma[c]);
        l->kept[c] = -0.5f * d * d - (l->log_sigma[c] + 0.918938533204672742f);
    }
    for (long b = 0, first = l->numbers; b < l->branches; first += l->sizes[b++]) {
        float most = -INFINITY, sum = 0;
        long chosen = *(const long long *)(l->choices[b].data + row * l->choices[b].along);
        if (chosen < 0 || chosen >= l->sizes[b]) return 0;
        for (long k = first; k < first + l->sizes[b]; k++) {
            float logit = l->heads[k * l->rows + row] + (l->penalties.height ? at(&l->penalties, k - l->numbers, row) : 0);
            l->of_heads[k * l->rows + row] = logit;
            most = most >= logit ? most : logit; // a NaN is the most
        }
        for (long k = first; k < first + l->sizes[b]; k++) sum += expf(l->of_heads[k * l->rows + row] -= most);
        sum = logf(sum);
        for (long k = first; k < first + l->sizes[b]; k++) l->of_heads[k * l->rows + row] -= sum;
        l->kept[l->numbers + b] = l->of_heads[(first + chosen) * l->rows + row];
    }
    return 1;
}

// Make log-probabilities of one row derivatives of the loss by them; returns the sum of the columns' losses.
static double clip(const loss *l, long row) {
    float low = 1 - l->epsilon, high = 1 + l->epsilon;
    double lost = 0;
    if (l->joint)
        for (long c = 1; c < l->numbers + l->branches; c++) l->kept[0] += l->kept[c];
    for (long c = 0; c < l->columns; c++) {
        float log_ratio = l->log_ratios[c * l->rows + row] = l->kept[c] - at(&l->old, c, row);
        float advantage = at(&l->advantages, l->advantages.height > 1 ? c : 0, row), ratio = expf(log_ratio);
        float clipped = (ratio < low ? low : ratio > high ? high : ratio) * advantage;
        ratio *= advantage;
        lost -= ratio > clipped ? clipped : ratio;
        l->kept[c] = ratio <= clipped ? -ratio * (float)(l->share / (l->columns * l->rows)) : 0;
    }
    return lost;
}

// Make log-probabilities of all choices derivatives of the loss by the heads; returns the branches' entropies.
static double spread(const loss *l, long row, double *of_sigma) {
    float *p = l->kept + l->numbers + l->branches, bonus = l->beta * l->share / l->rows;
    double entropies = 0;
    for (long c = 0; c < l->numbers; c++) {
        float g = l->kept[l->joint ? 0 : c], inverse = expf(-l->log_sigma[c]);
        float d = (at(&l->drawn, c, row) - l->heads[c * l->rows + row]) * inverse;
        l->of_heads[c * l->rows + row] = g * d * inverse;
        of_sigma[c] += g * (d * d - 1);
    }
    for (long b = 0, first = l->numbers; b < l->branches; first += l->sizes[b++]) {
        float g = l->kept[l->joint ? 0 : l->numbers + b], entropy = 0, *of = l->of_heads + first * l->rows + row;
        long chosen = *(const long long *)(l->choices[b].data + row * l->choices[b].along);
        for (long k = 0; k < l->sizes[b]; k++) entropy -= (p[k] = expf(of[k * l->rows])) * of[k * l->rows];
        for (long k = 0; k < l->sizes[b]; k++)
            of[k * l->rows] = g * ((k == chosen) - p[k]) + (bonus ? bonus * p[k] * (of[k * l->rows] + entropy) : 0);
        entropies += entropy;
    }
    return entropies;
}

static PyObject *lose(const loss *l) {
    double lost = 0, entropy = 0, of_sigma[MOST] = {0};
    for (long row = 0; row < l->rows; row++) {
        if (!likelihood(l, row)) return PyErr_Format(PyExc_IndexError, "row %ld has a choice that there is not", row), NULL;
        lost += clip(l, row);
        entropy += spread(l, row, of_sigma);
    }
    entropy /= l->rows;
    for (long c = 0; c < l->numbers; c++) {
        l->of_log_sigma[c] = of_sigma[c] - l->beta * l->share / l->numbers;
        entropy += (l->log_sigma[c] + 1.418938533204672742) / l->numbers;
    }
    return Py_BuildValue("(dd)", lost / (l->columns * l->rows), entropy);
}

PyDoc_STRVAR(surrogate_doc, "surrogate(heads, drawn, choices, penalties, old, advantages, sizes, log_sigma, joint, epsilon, beta, share,\n"
             "of_heads, of_log_sigma, log_ratios): write the last three; return policy loss and entropy.\n\n"
             "As in `ActionLikelihood`, with the same axes; sizes are int64, log_sigma and its gradient None without numbers.");
static PyObject *surrogate(PyObject *self, PyObject *args) {
    PyObject *heads, *drawn, *choices, *penalties, *old, *advantages, *sizes, *log_sigma, *of_heads, *of_log_sigma, *log_ratios, *found = NULL;
    loss l = {0};
    held all = {.count = 0};
    columns chosen[MOST];
    if (!PyArg_ParseTuple(args, "OOOOOOOOpdddOOO", &heads, &drawn, &choices, &penalties, &old, &advantages, &sizes, &log_sigma, &l.joint,
                          &l.epsilon, &l.beta, &l.share, &of_heads, &of_log_sigma, &log_ratios))
        return NULL;
    Py_buffer *h = hold(&all, heads, 0, 'f'), *s = h ? hold(&all, sizes, 0, 'i') : NULL;
    if (!s) goto end;
    l.rows = h->ndim == 2 ? h->shape[1] : -1, l.branches = s->shape[0], l.sizes = s->buf, l.heads = h->buf, l.choices = chosen;
    long width = 0;
    for (long b = 0; b < l.branches; b++) width += l.sizes[b];
    l.numbers = (l.rows < 0 ? -1 : h->shape[0]) - width;
    l.columns = l.joint ? 1 : l.numbers + l.branches;
    if (l.numbers < 0 || l.numbers + l.branches < 1 || l.numbers > MOST || l.branches > 8 || !PyList_Check(choices) || PyList_GET_SIZE(choices) != l.branches) {
        PyErr_SetString(PyExc_ValueError, "heads, sizes and choices do not belong together");
        goto end;
    }
    for (long b = 0; b < l.branches; b++)
        if (!hold_columns(&all, PyList_GET_ITEM(choices, b), 'i', l.rows, 1, &chosen[b])) goto end;
    if (!floats(&all, heads, 0, 2, l.numbers + width, l.rows, 0) || !hold_columns(&all, drawn, 'f', l.rows, l.numbers, &l.drawn) ||
        !hold_columns(&all, penalties, 'f', l.rows, -1, &l.penalties) || !hold_columns(&all, old, 'f', l.rows, l.columns, &l.old) ||
        !hold_columns(&all, advantages, 'f', l.rows, -1, &l.advantages) || !(l.of_heads = floats(&all, of_heads, 1, 2, l.numbers + width, l.rows, 0)) ||
        !(l.log_ratios = floats(&all, log_ratios, 1, 2, l.columns, l.rows, 0)))
        goto end;
    if ((l.penalties.height && l.penalties.height != width) || (l.advantages.height != 1 && l.advantages.height != l.columns)) {
        PyErr_SetString(PyExc_ValueError, "penalties or advantages have another number of columns");
        goto end;
    }
    if (l.numbers && (!(l.log_sigma = floats(&all, log_sigma, 0, 1, l.numbers, 0, 0)) || !(l.of_log_sigma = floats(&all, of_log_sigma, 1, 1, l.numbers, 0, 0))))
        goto end;
    l.kept = PyMem_Malloc((l.numbers + l.branches + width) * sizeof(float));
    found = l.kept ? lose(&l) : PyErr_NoMemory();
    PyMem_Free(l.kept);
end:
    let_go(&all);
    return found;
}

PyDoc_STRVAR(limit_doc, "limit(gradients, runs, norms, most): scale the parts of a gradient in place so that the norm of each is at most `most`.\n\n"
             "runs int64 [n, 3] has first element, end and part of each stretch; norms [parts] becomes the norms before.");
static PyObject *limit(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    held all = {.count = 0};
    if (n != 4) return PyErr_SetString(PyExc_TypeError, "limit takes 4 arguments"), NULL;
    Py_buffer *g = hold(&all, args[0], 1, 'f'), *runs = g ? hold(&all, args[1], 0, 'i') : NULL, *norms = runs ? hold(&all, args[2], 1, 'f') : NULL;
    double most = PyFloat_AsDouble(args[3]), found[MOST] = {0};
    int right = norms && !PyErr_Occurred();
    if (right && (runs->ndim != 2 || runs->shape[1] != 3 || norms->shape[0] > MOST || !PyBuffer_IsContiguous(g, 'C') || !PyBuffer_IsContiguous(runs, 'C')))
        PyErr_SetString(PyExc_ValueError, "expected gradients [n], runs [k, 3] and norms [parts]"), right = 0;
    const long *run = right ? runs->buf : NULL, *end = right ? run + 3 * runs->shape[0] : NULL;
    for (const long *r = run; right && r < end; r += 3) {
        if (r[0] < 0 || r[1] < r[0] || r[1] > g->len / 4 || r[2] < 0 || r[2] >= norms->shape[0])
            PyErr_SetString(PyExc_IndexError, "a run is outside of the gradients or of the parts"), right = 0;
        else
            found[r[2]] += squares(r[1] - r[0], (float *)g->buf + r[0]);
    }
    for (long part = 0; right && part < norms->shape[0]; part++) ((float *)norms->buf)[part] = found[part] = sqrt(found[part]);
    for (const long *r = run; right && r < end; r += 3)
        if (!(found[r[2]] <= most)) scale(r[1] - r[0], (float *)g->buf + r[0], most / (found[r[2]] + 1e-6));
    let_go(&all);
    if (!right) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL, forward_doc},
                                {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL, backward_doc},
                                {"limit", (PyCFunction)(void (*)(void))limit, METH_FASTCALL, limit_doc},
                                {"surrogate", surrogate, METH_VARARGS, surrogate_doc},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) {
    choose();
    return PyModule_Create(&module);
}
