// Products and passes over vectors of WIDTH floats, for the instruction set that TARGET names: included once for each.
//
// A tile of ROWS rows and VECTORS vectors of a product stays in registers until it is finished, activation included.

typedef float NAME(vec) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int NAME(mask) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#define vec NAME(vec)
#define PICK(condition, a, b) ((vec)(((condition) & (NAME(mask))(a)) | (~(condition) & (NAME(mask))(b))))
#define AT(address) (*(vec *)(address))
#define INLINE static inline __attribute__((always_inline)) TARGET

// The rational approximation of Eigen and of XLA, within 3 units in the last place; NaN stays NaN.
INLINE vec NAME(tanh)(vec x) {
    const vec limit = (vec){0} + 7.90531110763549805f;
    x = PICK(x > limit, limit, x);
    x = PICK(x < -limit, -limit, x);
    vec s = x * x, p = s * -2.76076847742355e-16f + 2.00018790482477e-13f, q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    return x * p / q;
}

INLINE void NAME(tile)(const product *p, long row, long column, const int rows, const int vectors) {
    vec sums[ROWS][VECTORS];
    const float *a = p->a + row * p->a_row, *b = p->b + column;
    for (int j = 0; j < vectors; j++)
        for (int i = 0; i < rows; i++) sums[i][j] = p->bias ? AT(p->bias + column + j * WIDTH) : (vec){0};
    for (long k = 0; k < p->inner; k++) {
        vec factors[VECTORS];
        for (int j = 0; j < vectors; j++) factors[j] = AT(b + k * p->columns + j * WIDTH);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++) sums[i][j] += a[i * p->a_row + k * p->a_column] * factors[j];
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            long at = (row + i) * p->columns + column + j * WIDTH;
            vec z = sums[i][j];
            if (p->activation == SWISH) {
                AT(p->z + at) = z;
                z *= 0.5f + 0.5f * NAME(tanh)(0.5f * z);
            } else if (p->activation == TANH)
                z = NAME(tanh)(z);
            else if (p->activation == RELU)
                z = PICK(z < 0.0f, (vec){0}, z);
            AT(p->y + at) = z;
        }
}

#define WITH(vectors)                                             \
    for (row = 0; row + ROWS <= p->rows; row += ROWS)             \
        NAME(tile)(p, row, column, ROWS, vectors);                \
    for (; row < p->rows; row++) NAME(tile)(p, row, column, 1, vectors);

TARGET static void NAME(multiply)(const product *p) {
    long row, column = 0;
    for (; column + WIDTH * VECTORS <= p->columns; column += WIDTH * VECTORS) { WITH(VECTORS) }
    for (; column < p->columns; column += WIDTH) { WITH(1) }
}

// Multiply gradients [rows, units] in place by the slope, found at y, or at z for swish; add them up to [units].
TARGET static void NAME(times_slope)(long rows, long units, int activation, const float *kept, float *deltas, float *sums) {
    for (long column = 0; column < units; column += WIDTH) {
        vec sum = {0};
        for (long at = column; at < rows * units; at += units) {
            vec x = AT(kept + at), delta = AT(deltas + at);
            if (activation == TANH)
                delta *= 1.0f - x * x;
            else if (activation == RELU)
                delta = PICK(x <= 0.0f, (vec){0}, delta);
            else {
                vec s = 0.5f + 0.5f * NAME(tanh)(0.5f * x);
                delta *= s * (1.0f + x * (1.0f - s));
            }
            sum += AT(deltas + at) = delta;
        }
        AT(sums + column) = sum;
    }
}

TARGET static double NAME(squares)(long n, const float *x) {
    vec sums[4] = {{0}};
    long i = 0;
    double total = 0;
    for (; i + 4 * WIDTH <= n; i += 4 * WIDTH)
        for (int j = 0; j < 4; j++) sums[j] += AT(x + i + j * WIDTH) * AT(x + i + j * WIDTH);
    for (; i < n; i++) total += x[i] * x[i];
    for (int j = 0; j < 4 * WIDTH; j++) total += sums[j / WIDTH][j % WIDTH];
    return total;
}

TARGET static void NAME(scale)(long n, float *x, float factor) {
    for (long i = 0; i < n; i++) x[i] *= factor;
}

#undef vec
#undef PICK
#undef AT
#undef INLINE
#undef WITH
#undef NAME
#undef TARGET
#undef WIDTH
#undef ROWS
#undef VECTORS
