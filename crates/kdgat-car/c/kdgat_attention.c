/* Attention layers in evaluation mode.
 *
 * GAT sums the inputs of a node's neighbours before it multiplies by W: W (sum of w_j x_j) equals the sum of w_j W x_j, and no array
 * of values is needed. The score of an edge needs a . W x_j, which is one product with the vector W^T a made at export. */
#include "kdgat_model.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void kdgat_link(const kdgat_graph *graph, kdgat_scratch *scratch)
{
    uint32_t node, edge = 0, count = 0;

    for (node = 0; node < graph->num_nodes; node++) {
        int has_loop = 0;
        scratch->first_edge[node] = (uint16_t)count;
        for (; edge < graph->num_edges && graph->target[edge] == node; edge++) {
            const uint16_t source = graph->source[edge];
            if (!has_loop && source >= node) {
                scratch->source[count] = (uint16_t)node;
                scratch->edge[count++] = KDGAT_SELF_LOOP;
                has_loop = 1;
            }
            if (source != node) {
                scratch->source[count] = source;
                scratch->edge[count++] = (uint16_t)edge;
            }
        }
        if (!has_loop) {
            scratch->source[count] = (uint16_t)node;
            scratch->edge[count++] = KDGAT_SELF_LOOP;
        }
    }
    scratch->first_edge[graph->num_nodes] = (uint16_t)count;
}

/* Copies rows node to node + count - 1 of x to scratch->rows; returns their number of columns. */
static uint32_t gather(const kdgat_rows *x, uint32_t node, uint32_t count, kdgat_scratch *scratch)
{
    const uint32_t columns = x->left_columns + x->right_columns;
    uint32_t row;
    for (row = 0; row < count; row++) {
        float *const to = scratch->rows + (size_t)row * columns;
        memcpy(to, x->left + (size_t)(node + row) * x->left_columns, x->left_columns * sizeof to[0]);
        if (x->right_columns > 0u) {
            memcpy(to + x->left_columns, x->right + (size_t)(node + row) * x->right_columns, x->right_columns * sizeof to[0]);
        }
    }
    return columns;
}

/* Leaky ReLU with the negative slope of the papers. */
static float leaky(float x)
{
    return x > 0.0f ? x : 0.2f * x;
}

/* Softmax of count values, in place. */
static void softmax(float *values, uint32_t count)
{
    float highest = values[0], sum = 0.0f;
    uint32_t i;
    for (i = 1; i < count; i++) {
        highest = values[i] > highest ? values[i] : highest;
    }
    for (i = 0; i < count; i++) {
        values[i] = expf(values[i] - highest);
        sum += values[i];
    }
    for (i = 0; i < count; i++) {
        values[i] /= sum;
    }
}

/* Writes one head's outputs of count nodes, which are in scratch->outputs, to rows of y, y_stride values apart. */
static void emit(const kdgat_conv *conv, uint32_t head, uint32_t count, kdgat_scratch *scratch, int relu, float *y, size_t y_stride,
                 float *sums)
{
    const uint32_t first = head * conv->channels;
    uint32_t row;
    for (row = 0; row < count; row++) {
        float *const output = scratch->outputs + (size_t)row * conv->channels;
        if (relu) {
            kdgat_relu(output, conv->channels);
        }
        if (sums != NULL) {
            kdgat_add(sums + first, output, conv->channels);
        }
        if (y != NULL) {
            memcpy(y + row * y_stride + first, output, conv->channels * sizeof output[0]);
        }
    }
}

/* Rows of y from a node on; NULL if y is. */
static float *rows_from(const kdgat_conv *conv, float *y, uint32_t node)
{
    return y == NULL ? NULL : y + (size_t)node * conv->heads * conv->channels;
}

#if KDGAT_GATV2

/* Features of an incoming edge, standardised. A self-loop has the mean of the node's other incoming edges. */
static void edge_features(const kdgat_graph *graph, const kdgat_scratch *scratch, uint32_t node, uint32_t slot,
                          float features[KDGAT_EDGE_COLUMNS])
{
    const uint32_t begin = scratch->first_edge[node], end = scratch->first_edge[node + 1u];
    uint32_t i, k;
    for (k = 0; k < KDGAT_EDGE_COLUMNS; k++) {
        float value = 0.0f;
        if (scratch->edge[slot] != KDGAT_SELF_LOOP) {
            value = graph->edge_attributes[scratch->edge[slot]][k];
        } else if (end - begin > 1u) {
            for (i = begin; i < end; i++) {
                value += scratch->edge[i] != KDGAT_SELF_LOOP ? graph->edge_attributes[scratch->edge[i]][k] : 0.0f;
            }
            value /= (float)(end - begin - 1u);
        }
        features[k] = (value - kdgat_edge_mean[k]) / kdgat_edge_deviation[k];
    }
}

/* Attention weights of a node's incoming edges for one head; `target` is the node's value as a target. Needs scratch->values. */
static void weigh(const kdgat_conv *conv, uint32_t head, const kdgat_graph *graph, uint32_t node, const float *target,
                  kdgat_scratch *scratch)
{
    const uint32_t begin = scratch->first_edge[node], count = scratch->first_edge[node + 1u] - begin;
    const float *const attention = conv->attention + (size_t)head * conv->channels;
    float features[KDGAT_EDGE_COLUMNS], of_edge[KDGAT_TILE];
    uint32_t i, first, k;

    for (i = 0; i < count; i++) {
        const float *const source = scratch->values + (size_t)scratch->source[begin + i] * conv->channels;
        float score = 0.0f;
        edge_features(graph, scratch, node, begin + i, features);
        for (first = 0; first < conv->channels; first += KDGAT_TILE) {
            const uint32_t outputs = kdgat_multiply_tile(&conv->edges[head], features, first, of_edge);
            for (k = 0; k < outputs; k++) {
                score += attention[first + k] * leaky(source[first + k] + target[first + k] + of_edge[k]);
            }
        }
        scratch->weights[i] = score;
    }
    softmax(scratch->weights, count);
}

void kdgat_conv_forward(const kdgat_conv *conv, const kdgat_graph *graph, const kdgat_rows *x, kdgat_scratch *scratch, int relu,
                        float *y, float *sums)
{
    const uint32_t nodes = graph->num_nodes, channels = conv->channels;
    uint32_t head, node, row, i, k;

    for (head = 0; head < conv->heads; head++) {
        for (node = 0; node < nodes; node += KDGAT_ROWS) {
            const uint32_t count = smaller(nodes - node, KDGAT_ROWS), columns = gather(x, node, count, scratch);
            kdgat_multiply(&conv->values[head], scratch->rows, columns, count, scratch->values + (size_t)node * channels, channels);
        }
        for (node = 0; node < nodes; node += KDGAT_ROWS) {
            const uint32_t count = smaller(nodes - node, KDGAT_ROWS), columns = gather(x, node, count, scratch);
            kdgat_multiply(&conv->targets[head], scratch->rows, columns, count, scratch->outputs, channels);
            for (row = 0; row < count; row++) {
                const uint32_t begin = scratch->first_edge[node + row], end = scratch->first_edge[node + row + 1u];
                float *const output = scratch->outputs + (size_t)row * channels;
                weigh(conv, head, graph, node + row, output, scratch);
                for (k = 0; k < channels; k++) {
                    output[k] = 0.0f;
                }
                for (i = begin; i < end; i++) {
                    const float *const value = scratch->values + (size_t)scratch->source[i] * channels;
                    for (k = 0; k < channels; k++) {
                        output[k] += scratch->weights[i - begin] * value[k];
                    }
                }
                for (k = 0; k < channels; k++) {
                    output[k] = output[k] * conv->scale[head * channels + k] + conv->shift[head * channels + k];
                }
            }
            emit(conv, head, count, scratch, relu, rows_from(conv, y, node), (size_t)conv->heads * channels, sums);
        }
    }
}

#else

/* Weighted sums of the rows source[0] to source[count - 1] of an array with this number of columns: sum[columns]. */
static void weighted_sums(const float *rows, uint32_t columns, const float *weights, const uint16_t *source, uint32_t count, float *sum)
{
    uint32_t first, i, k;
    for (first = 0; first + KDGAT_TILE <= columns; first += KDGAT_TILE) {
        float of_tile[KDGAT_TILE] = {0};
        for (i = 0; i < count; i++) {
            const float *const row = rows + (size_t)source[i] * columns + first;
            for (k = 0; k < KDGAT_TILE; k++) {
                of_tile[k] += weights[i] * row[k];
            }
        }
        memcpy(sum + first, of_tile, sizeof of_tile);
    }
    for (; first < columns; first++) {
        float of_column = 0.0f;
        for (i = 0; i < count; i++) {
            of_column += weights[i] * rows[(size_t)source[i] * columns + first];
        }
        sum[first] = of_column;
    }
}

/* Terms of the scores of a node's edges, as their source and as their target: scores[2 * heads]. */
static void set_scores(const kdgat_conv *conv, const float *x, uint32_t columns, float *scores)
{
    const uint32_t terms = 2u * conv->heads;
    uint32_t first, k, j;

    for (first = 0; first + KDGAT_TILE <= terms; first += KDGAT_TILE) {
        const float *vectors = conv->scores + first;
        float of_tile[KDGAT_TILE] = {0};
        for (k = 0; k < columns; k++) {
            for (j = 0; j < KDGAT_TILE; j++) {
                of_tile[j] += x[k] * vectors[j];
            }
            vectors += terms;
        }
        memcpy(scores + first, of_tile, sizeof of_tile);
    }
    /* The number of terms is even. */
    for (; first < terms; first += 2u) {
        const float *vectors = conv->scores + first;
        float one = 0.0f, other = 0.0f;
        for (k = 0; k < columns; k++) {
            one += x[k] * vectors[0];
            other += x[k] * vectors[1];
            vectors += terms;
        }
        scores[first] = one;
        scores[first + 1u] = other;
    }
}

/* Sums of a node's neighbours' inputs for one head, weighted by attention: sum[inputs]. Needs scratch->scores. */
static void aggregate(const kdgat_conv *conv, uint32_t head, const kdgat_rows *x, uint32_t node, kdgat_scratch *scratch, float *sum)
{
    const uint32_t begin = scratch->first_edge[node], count = scratch->first_edge[node + 1u] - begin;
    const uint16_t *const source = scratch->source + begin;
    const uint32_t terms = 2u * conv->heads;
    const float of_target = scratch->scores[(size_t)node * terms + conv->heads + head];
    uint32_t i;

    for (i = 0; i < count; i++) {
        scratch->weights[i] = leaky(scratch->scores[(size_t)source[i] * terms + head] + of_target);
    }
    softmax(scratch->weights, count);
    weighted_sums(x->left, x->left_columns, scratch->weights, source, count, sum);
    weighted_sums(x->right, x->right_columns, scratch->weights, source, count, sum + x->left_columns);
}

void kdgat_conv_forward(const kdgat_conv *conv, const kdgat_graph *graph, const kdgat_rows *x, kdgat_scratch *scratch, int relu,
                        float *y, float *sums)
{
    const uint32_t nodes = graph->num_nodes, terms = 2u * conv->heads;
    uint32_t head, node, row;

    for (node = 0; node < nodes; node += KDGAT_ROWS) {
        const uint32_t count = smaller(nodes - node, KDGAT_ROWS), columns = gather(x, node, count, scratch);
        for (row = 0; row < count; row++) {
            set_scores(conv, scratch->rows + (size_t)row * columns, columns, scratch->scores + (size_t)(node + row) * terms);
        }
    }
    for (head = 0; head < conv->heads; head++) {
        const kdgat_matrix *const values = &conv->values[head];
        for (node = 0; node < nodes; node += KDGAT_ROWS) {
            const uint32_t count = smaller(nodes - node, KDGAT_ROWS);
            for (row = 0; row < count; row++) {
                aggregate(conv, head, x, node + row, scratch, scratch->rows + (size_t)row * values->inputs);
            }
            kdgat_multiply(values, scratch->rows, values->inputs, count, scratch->outputs, conv->channels);
            emit(conv, head, count, scratch, relu, rows_from(conv, y, node), (size_t)conv->heads * conv->channels, sums);
        }
    }
}

#if KDGAT_MODEL == KDGAT_MODEL_GAT

void kdgat_conv_nodes(const kdgat_conv *conv, const kdgat_rows *x, kdgat_scratch *scratch, uint32_t node, uint32_t count, float *y,
                      size_t y_stride)
{
    uint32_t head, row;
    for (head = 0; head < conv->heads; head++) {
        const kdgat_matrix *const values = &conv->values[head];
        for (row = 0; row < count; row++) {
            aggregate(conv, head, x, node + row, scratch, scratch->rows + (size_t)row * values->inputs);
        }
        kdgat_multiply(values, scratch->rows, values->inputs, count, scratch->outputs, conv->channels);
        emit(conv, head, count, scratch, 1, y, y_stride, NULL);
    }
}

#endif

#endif
