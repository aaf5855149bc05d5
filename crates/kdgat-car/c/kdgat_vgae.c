/* Graph autoencoder in evaluation mode (z = mu): attention layers with ReLU -> mu -> reconstructed features and the node's ID.
 *
 * scratch->a and scratch->b alternate as outputs of the layers; the first layer writes to a, since b holds the embeddings. */
#include "kdgat_car.h"
#include "kdgat_model.h"

#include <math.h>

#if KDGAT_MODEL == KDGAT_MODEL_VGAE || KDGAT_PAIR

/* Weight of the ID's cross entropy in the difficulty. */
#define ID_WEIGHT 0.1f

/* Rows of an array with this number of columns. */
static kdgat_rows rows_of(const float *values, uint32_t columns)
{
    kdgat_rows rows;
    rows.left = values;
    rows.left_columns = columns;
    rows.right = values;
    rows.right_columns = 0u;
    return rows;
}

/* Cross entropy of a node's ID, from its latent row. */
static float id_error(const float *latent, uint32_t id_index)
{
    float logits[KDGAT_TILE];
    float highest = -INFINITY, sum = 0.0f, own = 0.0f;
    uint32_t first, j;

    for (first = 0; first < kdgat_id_classifier.outputs; first += KDGAT_TILE) {
        const uint32_t count = kdgat_multiply_tile(&kdgat_id_classifier, latent, first, logits);
        float above = highest;
        for (j = 0; j < count; j++) {
            above = logits[j] > above ? logits[j] : above;
        }
        /* Sums are kept relative to the highest logit so far. */
        sum *= first > 0u ? expf(highest - above) : 0.0f;
        highest = above;
        for (j = 0; j < count; j++) {
            sum += expf(logits[j] - highest);
        }
        if (id_index >= first && id_index - first < count) {
            own = logits[id_index - first];
        }
    }
    return logf(sum) + highest - own;
}

/* Sets the contribution of each node to the cross entropy of its ID; returns their mean. */
static float set_id_errors(const kdgat_graph *graph, const float *latent, kdgat_model_output *output)
{
    float sum = 0.0f;
    uint32_t node;
    for (node = 0; node < graph->num_nodes; node++) {
        const float error = id_error(latent + (size_t)node * KDGAT_LATENT, graph->id_index[node]);
        output->by_node[node] = ID_WEIGHT * error;
        sum += error;
    }
    return sum / (float)graph->num_nodes;
}

/* Adds the errors of the reconstructed features to the contributions of the nodes, and sets their means. Returns the mean squared
 * error. `reconstruction` is [nodes][KDGAT_NODE_COLUMNS], before the sigmoid. */
static float add_feature_errors(const kdgat_graph *graph, const float *reconstruction, kdgat_model_output *output)
{
    const float nodes = (float)graph->num_nodes;
    float *const errors = output->error_means, *const squares = output->error_means + KDGAT_NODE_COLUMNS;
    float sum = 0.0f;
    uint32_t node, k;

    for (k = 0; k < KDGAT_NODE_COLUMNS; k++) {
        errors[k] = 0.0f;
        squares[k] = 0.0f;
    }
    for (node = 0; node < graph->num_nodes; node++) {
        const float *const values = reconstruction + (size_t)node * KDGAT_NODE_COLUMNS;
        float of_node = 0.0f;
        for (k = 0; k < KDGAT_NODE_COLUMNS; k++) {
#if KDGAT_FEATURES == KDGAT_FEATURES_CLASSIC
            const float value = 1.0f / (1.0f + expf(-values[k]));
#else
            const float value = values[k];
#endif
            const float error = value - graph->continuous[node][k];
            errors[k] += error;
            squares[k] += error * error;
            of_node += error * error;
        }
        of_node /= (float)KDGAT_NODE_COLUMNS;
        output->by_node[node] += of_node;
        sum += of_node;
    }
    for (k = 0; k < KDGAT_NODE_COLUMNS; k++) {
        errors[k] /= nodes;
        squares[k] /= nodes;
    }
    return sum / nodes;
}

/* Applies a layer to x and writes its output to the scratch array that x is not in; returns that output. */
static kdgat_rows apply(const kdgat_conv *conv, const kdgat_graph *graph, kdgat_rows x, kdgat_scratch *scratch, int relu)
{
    float *const y = x.left == scratch->a ? scratch->b : scratch->a;
    kdgat_conv_forward(conv, graph, &x, scratch, relu, y, NULL);
    return rows_of(y, conv->heads * conv->channels);
}

static void score(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output)
{
    kdgat_rows x = kdgat_embed(&kdgat_vgae_embedding, graph, scratch);
    float *latent;
    float of_ids;
    uint32_t layer, node;

    kdgat_link(graph, scratch);
    for (layer = 0; layer < KDGAT_ENCODER_LAYERS; layer++) {
        x = apply(&kdgat_encoder[layer], graph, x, scratch, 1);
    }
    latent = x.left == scratch->a ? scratch->b : scratch->a;
    for (node = 0; node < graph->num_nodes; node += KDGAT_ROWS) {
        const uint32_t left = graph->num_nodes - node;
        kdgat_multiply(&kdgat_mean, x.left + (size_t)node * x.left_columns, x.left_columns, left < KDGAT_ROWS ? left : KDGAT_ROWS,
                       latent + (size_t)node * KDGAT_LATENT, KDGAT_LATENT);
    }
    of_ids = set_id_errors(graph, latent, output);
    x = rows_of(latent, KDGAT_LATENT);
    for (layer = 0; layer < KDGAT_DECODER_LAYERS; layer++) {
        x = apply(&kdgat_decoder[layer], graph, x, scratch, layer + 1u < KDGAT_DECODER_LAYERS);
    }
    output->raw = add_feature_errors(graph, x.left, output) + ID_WEIGHT * of_ids;
    output->error_means[KDGAT_PROFILE_VALUES - 1] = of_ids;
}

#if KDGAT_PAIR

void kdgat_partner_score(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output)
{
    score(graph, scratch, output);
}

#else

void kdgat_model_score(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output)
{
    score(graph, scratch, output);
}

void kdgat_model_explain(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output)
{
    /* The errors of the nodes are the terms of the score. */
    (void)graph;
    (void)scratch;
    (void)output;
}

#endif

#endif
