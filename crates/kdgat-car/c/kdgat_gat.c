/* GAT classifier with jumping knowledge: attention layers with ReLU -> means over the nodes of each layer's output, concatenated ->
 * fully connected head -> log odds of an attack.
 *
 * scratch->a holds the outputs of all layers but the last, [KDGAT_LAYERS - 1][KDGAT_MAX_NODES][KDGAT_COLUMNS]; of the last one only the
 * means are kept (GATv2: its output is in scratch->b, for kdgat_model_explain). scratch->b holds the embeddings before that. */
#include "kdgat_car.h"
#include "kdgat_model.h"

#if KDGAT_MODEL == KDGAT_MODEL_GAT

#define LAYER_VALUES ((size_t)KDGAT_MAX_NODES * KDGAT_COLUMNS)

/* Log odds of an attack of pooled outputs in scratch->row[0], which are overwritten. */
static float log_odds(kdgat_scratch *scratch)
{
    uint32_t layer, k, from = 0;
    for (layer = 0; layer < KDGAT_HEAD_LAYERS; layer++) {
        const kdgat_matrix *const matrix = &kdgat_head[layer];
        float *const x = scratch->row[from], *const y = scratch->row[1u - from];
        if (layer > 0u) {
            for (k = 0; k < matrix->inputs; k++) {
                x[k] = x[k] > 0.0f ? x[k] : 0.0f;
            }
        }
        kdgat_multiply(matrix, x, 0u, 1u, y, 0u);
        from = 1u - from;
    }
    return scratch->row[from][1] - scratch->row[from][0];
}

/* Input of a layer. */
static kdgat_rows input_of(uint32_t layer, const kdgat_graph *graph, kdgat_scratch *scratch)
{
    kdgat_rows rows;
    if (layer == 0u) {
        return kdgat_embed(graph, scratch);
    }
    rows.left = scratch->a + (layer - 1u) * LAYER_VALUES;
    rows.left_columns = KDGAT_COLUMNS;
    rows.right = rows.left;
    rows.right_columns = 0u;
    return rows;
}

void kdgat_model_score(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output)
{
    uint32_t layer, k;

    kdgat_link(graph, scratch);
    for (k = 0; k < KDGAT_LAYERS * KDGAT_COLUMNS; k++) {
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
    for (k = 0; k < KDGAT_LAYERS * KDGAT_COLUMNS; k++) {
        scratch->pooled[k] /= (float)graph->num_nodes;
        scratch->row[0][k] = scratch->pooled[k];
    }
    output->raw = log_odds(scratch);
}

/* Output of the last layer for one node. */
static void last_layer(const kdgat_rows *x, kdgat_scratch *scratch, uint32_t node, float *y)
{
#if KDGAT_GATV2
    const float *const from = scratch->b + KDGAT_MAX_NODES * KDGAT_EMBEDDING + (size_t)node * KDGAT_COLUMNS;
    uint32_t k;
    (void)x;
    for (k = 0; k < KDGAT_COLUMNS; k++) {
        y[k] = from[k];
    }
#else
    kdgat_conv_node(&kdgat_convs[KDGAT_LAYERS - 1], x, scratch, node, y);
#endif
}

void kdgat_model_explain(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output)
{
    const kdgat_rows x = input_of(KDGAT_LAYERS - 1u, graph, scratch);
    const float nodes = (float)graph->num_nodes;
    float *const row = scratch->row[0];
    uint32_t node, layer, k;

    if (graph->num_nodes < 2u) {
        output->by_node[0] = output->raw;
        return;
    }
    for (node = 0; node < graph->num_nodes; node++) {
        for (layer = 0; layer + 1u < KDGAT_LAYERS; layer++) {
            const float *const from = scratch->a + layer * LAYER_VALUES + (size_t)node * KDGAT_COLUMNS;
            for (k = 0; k < KDGAT_COLUMNS; k++) {
                row[layer * KDGAT_COLUMNS + k] = from[k];
            }
        }
        last_layer(&x, scratch, node, row + (KDGAT_LAYERS - 1u) * KDGAT_COLUMNS);
        for (k = 0; k < KDGAT_LAYERS * KDGAT_COLUMNS; k++) {
            row[k] = (scratch->pooled[k] * nodes - row[k]) / (nodes - 1.0f);
        }
        output->by_node[node] = output->raw - log_odds(scratch);
    }
}

#endif
