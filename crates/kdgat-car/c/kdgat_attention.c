/* Attention layers in evaluation mode.
 *
 * GAT sums the inputs of a node's neighbours before it multiplies by W: W (sum of w_j x_j) equals the sum of w_j W x_j, and no array
 * of values is needed. The score of an edge needs a . W x_j, which is one product with the vector W^T a made at export. */
#include "kdgat_model.h"

#include <math.h>
#include <stddef.h>

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
    uint32_t row, k;
    for (row = 0; row < count; row++) {
        float *const to = scratch->rows + (size_t)row * columns;
        const float *const left = x->left + (size_t)(node + row) * x->left_columns;
        for (k = 0; k < x->left_columns; k++) {
            to[k] = left[k];
        }
        if (x->right_columns > 0u) {
            const float *const right = x->right + (size_t)(node + row) * x->right_columns;
            for (k = 0; k < x->right_columns; k++) {
                to[x->left_columns + k] = right[k];
            }
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
    uint32_t row, k;
    for (row = 0; row < count; row++) {
        float *const output = scratch->outputs + (size_t)row * conv->channels;
        if (relu) {
            for (k = 0; k < conv->channels; k++) {
                output[k] = output[k] > 0.0f ? output[k] : 0.0f;
            }
        }
        if (sums != NULL) {
            for (k = 0; k < conv->channels; k++) {
                sums[first + k] += output[k];
            }
        }
        if (y != NULL) {
            float *const to = y + row * y_stride + first;
            for (k = 0; k < conv->channels; k++) {
                to[k] = output[k];
            }
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

/* Adds weight * row `node` of x to sum. */
static void add_row(float *sum, float weight, const kdgat_rows *x, uint32_t node)
{
    const float *const left = x->left + (size_t)node * x->left_columns;
    uint32_t k;
    for (k = 0; k < x->left_columns; k++) {
        sum[k] += weight * left[k];
    }
    if (x->right_columns > 0u) {
        const float *const right = x->right + (size_t)node * x->right_columns;
        for (k = 0; k < x->right_columns; k++) {
            sum[x->left_columns + k] += weight * right[k];
        }
    }
}

/* Terms of the scores of a node's edges, as their source and as their target: scores[2 * heads]. */
static void set_scores(const kdgat_conv *conv, const float *x, uint32_t columns, float *scores)
{
    const uint32_t terms = 2u * conv->heads;
    const float *vectors = conv->scores;
    uint32_t term, k;
    for (term = 0; term < terms; term++) {
        scores[term] = 0.0f;
    }
    for (k = 0; k < columns; k++) {
        for (term = 0; term < terms; term++) {
            scores[term] += x[k] * vectors[term];
        }
        vectors += terms;
    }
}

/* Sums of a node's neighbours' inputs for one head, weighted by attention: sum[inputs]. Needs scratch->scores. */
static void aggregate(const kdgat_conv *conv, uint32_t head, const kdgat_rows *x, uint32_t node, kdgat_scratch *scratch, float *sum)
{
    const uint32_t begin = scratch->first_edge[node], count = scratch->first_edge[node + 1u] - begin;
    const uint32_t columns = x->left_columns + x->right_columns, terms = 2u * conv->heads;
    const float of_target = scratch->scores[(size_t)node * terms + conv->heads + head];
    uint32_t i, k;

    for (i = 0; i < count; i++) {
        scratch->weights[i] = leaky(scratch->scores[(size_t)scratch->source[begin + i] * terms + head] + of_target);
    }
    softmax(scratch->weights, count);
    for (k = 0; k < columns; k++) {
        sum[k] = 0.0f;
    }
    for (i = 0; i < count; i++) {
        add_row(sum, scratch->weights[i], x, scratch->source[begin + i]);
    }
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
