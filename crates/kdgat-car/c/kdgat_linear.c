/* Products with the model's matrices.
 *
 * The inner loops run over 8 neighbouring outputs, so that compilers can use vector instructions without changing the order of a
 * sum, and without -ffast-math. */
#include "kdgat_linear.h"

#include <string.h>

#if KDGAT_INT8
/* Inputs whose weights are converted together. */
#define BLOCK 16u
#endif

void kdgat_relu(float *values, uint32_t count)
{
    uint32_t first, k;
    for (first = 0; first + KDGAT_TILE <= count; first += KDGAT_TILE) {
        float *const tile = values + first;
        for (k = 0; k < KDGAT_TILE; k++) {
            tile[k] = tile[k] > 0.0f ? tile[k] : 0.0f;
        }
    }
    for (k = first; k < count; k++) {
        values[k] = values[k] > 0.0f ? values[k] : 0.0f;
    }
}

void kdgat_add(float *restrict sums, const float *restrict values, uint32_t count)
{
    uint32_t first, k;
    for (first = 0; first + KDGAT_TILE <= count; first += KDGAT_TILE) {
        float *restrict const tile = sums + first;
        const float *restrict const from = values + first;
        for (k = 0; k < KDGAT_TILE; k++) {
            tile[k] += from[k];
        }
    }
    for (k = first; k < count; k++) {
        sums[k] += values[k];
    }
}

/* Writes the outputs of a tile from its sums. */
static void finish(const kdgat_matrix *matrix, uint32_t first, uint32_t count, const float *restrict sums, float *restrict y)
{
    const float *restrict const bias = matrix->bias + first;
#if KDGAT_INT8
    const float *restrict const scale = matrix->scale + first;
#endif
    uint32_t j;

    if (count == KDGAT_TILE) {
        for (j = 0; j < KDGAT_TILE; j++) {
#if KDGAT_INT8
            y[j] = sums[j] * scale[j] + bias[j];
#else
            y[j] = sums[j] + bias[j];
#endif
        }
        return;
    }
    for (j = 0; j < count; j++) {
#if KDGAT_INT8
        y[j] = sums[j] * scale[j] + bias[j];
#else
        y[j] = sums[j] + bias[j];
#endif
    }
}

static uint32_t outputs_of_tile(const kdgat_matrix *matrix, uint32_t first)
{
    const uint32_t left = matrix->outputs - first;
    return left < KDGAT_TILE ? left : KDGAT_TILE;
}

uint32_t kdgat_multiply_tile(const kdgat_matrix *matrix, const float *x, uint32_t first, float *y)
{
    const kdgat_weight *weight = matrix->weight + (size_t)first * matrix->inputs;
    const uint32_t count = outputs_of_tile(matrix, first);
    const uint32_t quads = matrix->inputs / 4u;
    /* Four sums for each output: an addition need not wait for the one before it, and short sums round less. */
    float sums[4][KDGAT_TILE] = {{0}};
    uint32_t i, j, k;

    for (k = 0; k < quads; k++) {
        const float x0 = x[4u * k], x1 = x[4u * k + 1u], x2 = x[4u * k + 2u], x3 = x[4u * k + 3u];
        for (j = 0; j < KDGAT_TILE; j++) {
            sums[0][j] += x0 * (float)weight[j];
        }
        for (j = 0; j < KDGAT_TILE; j++) {
            sums[1][j] += x1 * (float)weight[KDGAT_TILE + j];
        }
        for (j = 0; j < KDGAT_TILE; j++) {
            sums[2][j] += x2 * (float)weight[2u * KDGAT_TILE + j];
        }
        for (j = 0; j < KDGAT_TILE; j++) {
            sums[3][j] += x3 * (float)weight[3u * KDGAT_TILE + j];
        }
        weight += 4u * KDGAT_TILE;
    }
    for (i = 4u * quads; i < matrix->inputs; i++) {
        for (j = 0; j < KDGAT_TILE; j++) {
            sums[0][j] += x[i] * (float)weight[j];
        }
        weight += KDGAT_TILE;
    }
    for (j = 0; j < KDGAT_TILE; j++) {
        sums[0][j] = (sums[0][j] + sums[1][j]) + (sums[2][j] + sums[3][j]);
    }
    finish(matrix, first, count, sums[0], y);
    return count;
}

/* Sums of the products of `inputs` inputs for a tile and four rows, added to sums if adds is 1. The inner loops have a constant length and
 * one sum for each output, so that compilers keep the sums of a row in vector registers. */
static void sum_four(const float *weight, uint32_t inputs, const float *const x[KDGAT_ROWS], uint32_t from, int adds,
                     float sums[KDGAT_ROWS][KDGAT_TILE])
{
    float s0[KDGAT_TILE] = {0}, s1[KDGAT_TILE] = {0}, s2[KDGAT_TILE] = {0}, s3[KDGAT_TILE] = {0};
    const float *const x0 = x[0] + from, *const x1 = x[1] + from, *const x2 = x[2] + from, *const x3 = x[3] + from;
    uint32_t j, k;

    if (adds) {
        for (j = 0; j < KDGAT_TILE; j++) {
            s0[j] = sums[0][j];
            s1[j] = sums[1][j];
            s2[j] = sums[2][j];
            s3[j] = sums[3][j];
        }
    }
    for (k = 0; k < inputs; k++) {
        const float a0 = x0[k], a1 = x1[k], a2 = x2[k], a3 = x3[k];
        for (j = 0; j < KDGAT_TILE; j++) {
            s0[j] += a0 * weight[j];
        }
        for (j = 0; j < KDGAT_TILE; j++) {
            s1[j] += a1 * weight[j];
        }
        for (j = 0; j < KDGAT_TILE; j++) {
            s2[j] += a2 * weight[j];
        }
        for (j = 0; j < KDGAT_TILE; j++) {
            s3[j] += a3 * weight[j];
        }
        weight += KDGAT_TILE;
    }
    for (j = 0; j < KDGAT_TILE; j++) {
        sums[0][j] = s0[j];
        sums[1][j] = s1[j];
        sums[2][j] = s2[j];
        sums[3][j] = s3[j];
    }
}

/* Sums of a tile for four rows. */
static void multiply_four(const kdgat_weight *weight, uint32_t inputs, const float *const x[KDGAT_ROWS],
                          float sums[KDGAT_ROWS][KDGAT_TILE])
{
#if KDGAT_INT8
    /* Weights are converted once for all rows, a block of inputs at a time. */
    float block[BLOCK * KDGAT_TILE];
    uint32_t from, i;
    for (from = 0; from < inputs; from += BLOCK) {
        const uint32_t count = inputs - from < BLOCK ? inputs - from : BLOCK;
        for (i = 0; i < count * KDGAT_TILE; i++) {
            block[i] = (float)weight[i];
        }
        sum_four(block, count, x, from, from > 0u, sums);
        weight += count * KDGAT_TILE;
    }
#else
    sum_four(weight, inputs, x, 0u, 0, sums);
#endif
}

void kdgat_multiply(const kdgat_matrix *matrix, const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride)
{
    const float *of_row[KDGAT_ROWS];
    float sums[KDGAT_ROWS][KDGAT_TILE];
    uint32_t first, row;

    if (rows == 1u) {
        for (first = 0; first < matrix->outputs; first += KDGAT_TILE) {
            (void)kdgat_multiply_tile(matrix, x, first, y + first);
        }
        return;
    }
    /* With two or three rows, the last one is computed again in place of those that are missing. */
    for (row = 0; row < KDGAT_ROWS; row++) {
        of_row[row] = x + x_stride * (row < rows ? row : rows - 1u);
    }
    for (first = 0; first < matrix->outputs; first += KDGAT_TILE) {
        multiply_four(matrix->weight + (size_t)first * matrix->inputs, matrix->inputs, of_row, sums);
        for (row = 0; row < rows; row++) {
            finish(matrix, first, outputs_of_tile(matrix, first), sums[row], y + y_stride * row + first);
        }
    }
}
