/* Graph attention layers: GAT (Velickovic et al. 2018) and GATv2 (Brody et al. 2022), heads concatenated. */
#ifndef KDGAT_ATTENTION_H
#define KDGAT_ATTENTION_H

#include "kdgat_internal.h"
#include "kdgat_linear.h"

/* An attention layer of `heads` heads of `channels` columns. */
typedef struct {
    uint32_t heads;
    uint32_t channels;
    /* One matrix for each head. GAT: W and the bias, batch norm included. GATv2: W_l and its bias, the values of sources. */
    const kdgat_matrix *values;
    /* GAT: [inputs][2 * heads], columns W^T a_source of all heads, then W^T a_target: the two terms of a score. Always in f32. */
    const float *scores;
    /* GATv2, one for each head: W_r and its bias, the values of targets; W_e of the edge features. */
    const kdgat_matrix *targets;
    const kdgat_matrix *edges;
    const float *attention; /* GATv2: [heads][channels] */
    const float *scale;     /* GATv2: [heads][channels], factor of the output (batch norm) */
    const float *shift;     /* GATv2: [heads][channels], added to it (bias, batch norm) */
} kdgat_conv;

/* Rows of a layer's input: `left` columns from one array, then `right` columns from another. The first layer reads the embedding and
 * the continuous features; the others read the output of a layer, with no right columns. */
typedef struct {
    const float *left;
    const float *right;
    uint32_t left_columns;
    uint32_t right_columns;
} kdgat_rows;

/* Sorts the graph's edges by target into scratch, with exactly one self-loop a node. */
void kdgat_link(const kdgat_graph *graph, kdgat_scratch *scratch);

/* Applies a layer to all nodes. Writes [nodes][heads * channels] to y unless it is NULL, and adds the sum over the nodes to
 * sums[heads * channels] unless it is NULL. relu = 1 applies ReLU first. */
void kdgat_conv_forward(const kdgat_conv *conv, const kdgat_graph *graph, const kdgat_rows *x, kdgat_scratch *scratch, int relu,
                        float *y, float *sums);

#if KDGAT_MODEL == KDGAT_MODEL_GAT && !KDGAT_GATV2
/* Applies a layer with ReLU to `count` nodes (1 to 4), from the scores of the last kdgat_conv_forward: rows of y[heads * channels],
 * y_stride values apart. */
void kdgat_conv_nodes(const kdgat_conv *conv, const kdgat_rows *x, kdgat_scratch *scratch, uint32_t node, uint32_t count, float *y,
                      size_t y_stride);
#endif

#endif
