/* GAT classifier with jumping knowledge: attention layers with ReLU -> means over the nodes of each layer's output, concatenated ->
 * fully connected head -> log odds of an attack.
 *
 * scratch->a holds the outputs of all layers but the last, [KDGAT_LAYERS - 1][KDGAT_MAX_NODES][KDGAT_COLUMNS]; of the last one only the
 * means are kept (GATv2: its output is in scratch->b, for kdgat_model_explain). scratch->b holds the embeddings before that. */
#include "kdgat_car.h"
#include "kdgat_model.h"

#if KDGAT_MODEL == KDGAT_MODEL_GAT

#define LAYER_VALUES ((size_t)KDGAT_MAX_NODES * KDGAT_COLUMNS)

#define POOLED (KDGAT_LAYERS * KDGAT_COLUMNS)

/* Log odds of an attack of `count` rows (1 to 4) of pooled outputs in scratch->head, [count][POOLED], which are overwritten. */
static void set_log_odds(kdgat_scratch *scratch, uint32_t count, float odds[KDGAT_ROWS])
{
    float *x = scratch->head, *y = scratch->rows, *other;
    uint32_t layer, row;
    for (layer = 0; layer < KDGAT_HEAD_LAYERS; layer++) {
        const kdgat_matrix *const matrix = &kdgat_head[layer];
        if (layer > 0u) {
            kdgat_relu(x, count * POOLED);
        }
        kdgat_multiply(matrix, x, POOLED, count, y, POOLED);
        other = x;
        x = y;
        y = other;
    }
    for (row = 0; row < count; row++) {
        odds[row] = x[row * POOLED + 1u] - x[row * POOLED];
    }
}

/* Input of a layer. */
static kdgat_rows input_of(uint32_t layer, const kdgat_graph *graph, kdgat_scratch *scratch)
{
    kdgat_rows rows;
    if (layer == 0u) {
        return kdgat_embed(&kdgat_gat_embedding, graph, scratch);
    }
    rows.left = scratch->a + (layer - 1u) * LAYER_VALUES;
    rows.left_columns = KDGAT_COLUMNS;
    rows.right = rows.left;
    rows.right_columns = 0u;
    return rows;
}

void kdgat_model_score(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output)
{
    float odds[KDGAT_ROWS];
    uint32_t layer, k;

    kdgat_link(graph, scratch);
    for (k = 0; k < POOLED; k++) {
        scratch->pooled[k] = 0.0f;
    }
    for (layer = 0; layer < KDGAT_LAYERS; layer++) {
        const kdgat_rows x = input_of(layer, graph, scratch);
        float *y = scratch->a + layer * LAYER_VALUES;
        if (layer == KDGAT_LAYERS - 1u) {
#if KDGAT_GATV2
            y = scratch->b + KDGAT_MAX_NODES * KDGAT_EMBEDDING;
#else
            y = NULL;
#endif
        }
        kdgat_conv_forward(&kdgat_convs[layer], graph, &x, scratch, 1, y, scratch->pooled + layer * KDGAT_COLUMNS);
    }
    for (k = 0; k < POOLED; k++) {
        scratch->pooled[k] /= (float)graph->num_nodes;
        scratch->head[k] = scratch->pooled[k];
    }
    set_log_odds(scratch, 1u, odds);
    output->raw = odds[0];
}

/* Outputs of the last layer for `count` nodes (1 to 4): y[count][POOLED], of which KDGAT_COLUMNS columns are written. */
static void last_layer(const kdgat_rows *x, kdgat_scratch *scratch, uint32_t node, uint32_t count, float *y)
{
#if KDGAT_GATV2
    const float *const from = scratch->b + KDGAT_MAX_NODES * KDGAT_EMBEDDING + (size_t)node * KDGAT_COLUMNS;
    uint32_t row, k;
    (void)x;
    for (row = 0; row < count; row++) {
        for (k = 0; k < KDGAT_COLUMNS; k++) {
            y[row * POOLED + k] = from[row * KDGAT_COLUMNS + k];
        }
    }
#else
    kdgat_conv_nodes(&kdgat_convs[KDGAT_LAYERS - 1], x, scratch, node, count, y, POOLED);
#endif
}

void kdgat_model_explain(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output)
{
    const kdgat_rows x = input_of(KDGAT_LAYERS - 1u, graph, scratch);
    const float nodes = (float)graph->num_nodes;
    float odds[KDGAT_ROWS];
    uint32_t node, row, layer, k;

    if (graph->num_nodes < 2u) {
        output->by_node[0] = output->raw;
        return;
    }
    for (node = 0; node < graph->num_nodes; node += KDGAT_ROWS) {
        const uint32_t left = graph->num_nodes - node, count = left < KDGAT_ROWS ? left : KDGAT_ROWS;
        last_layer(&x, scratch, node, count, scratch->head + (KDGAT_LAYERS - 1u) * KDGAT_COLUMNS);
        for (row = 0; row < count; row++) {
            float *const of_node = scratch->head + row * POOLED;
            for (layer = 0; layer + 1u < KDGAT_LAYERS; layer++) {
                const float *const from = scratch->a + layer * LAYER_VALUES + (size_t)(node + row) * KDGAT_COLUMNS;
                for (k = 0; k < KDGAT_COLUMNS; k++) {
                    of_node[layer * KDGAT_COLUMNS + k] = from[k];
                }
            }
            for (k = 0; k < POOLED; k++) {
                of_node[k] = (scratch->pooled[k] * nodes - of_node[k]) / (nodes - 1.0f);
            }
        }
        set_log_odds(scratch, count, odds);
        for (row = 0; row < count; row++) {
            output->by_node[node + row] = output->raw - odds[row];
        }
    }
}

#endif
