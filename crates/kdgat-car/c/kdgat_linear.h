/* Matrices of the model and their products with rows of activations. */
#ifndef KDGAT_LINEAR_H
#define KDGAT_LINEAR_H

#include <stddef.h>
#include <stdint.h>

#include "kdgat_config.h"

/* Outputs computed together. */
#define KDGAT_TILE 8u
/* Rows computed together. */
#define KDGAT_ROWS 4u

#if KDGAT_INT8
typedef int8_t kdgat_weight;
#else
typedef float kdgat_weight;
#endif

/* A linear map y = W x + b of `inputs` to `outputs` columns. */
typedef struct {
    /* [ceil(outputs / 8)][inputs][8]: for each tile of 8 outputs and each input, the 8 weights; padded with zeros. */
    const kdgat_weight *weight;
#if KDGAT_INT8
    const float *scale; /* [outputs]: value of a weight of 1 in each output */
#endif
    const float *bias; /* [outputs] */
    uint32_t inputs;
    uint32_t outputs;
} kdgat_matrix;

/* Sets each of `count` values to at least 0. */
void kdgat_relu(float *values, uint32_t count);

/* Adds `count` values to those of sums. */
void kdgat_add(float *restrict sums, const float *restrict values, uint32_t count);

/* Applies the map to `rows` rows (1 to 4), `x_stride` and `y_stride` values apart. */
void kdgat_multiply(const kdgat_matrix *matrix, const float *x, size_t x_stride, uint32_t rows, float *y, size_t y_stride);

/* Computes outputs first to first + 7 of one row into y[0] to y[7]; `first` is a multiple of 8. Returns how many of them exist; only
 * those are written. */
uint32_t kdgat_multiply_tile(const kdgat_matrix *matrix, const float *x, uint32_t first, float *y);

#endif
