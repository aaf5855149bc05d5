/* Scores graphs from standard input with an exported network alone, without windows and verdicts. Prints a line for each graph: the raw
 * score, then the contribution of each node; of two models together, a second line for the autoencoder. */
#include <stdio.h>
#include <string.h>

#include "kdgat_car.h"
#include "kdgat_model.h"

static kdgat_graph graph;
static kdgat_scratch scratch;
static kdgat_model_output output;
#if KDGAT_PAIR
static kdgat_model_output of_partner;
#endif

static int get(void *to, size_t size, size_t count)
{
    return fread(to, size, count, stdin) == count;
}

static void print(const kdgat_model_output *from)
{
    uint32_t node;
    printf("%.9g", (double)from->raw);
    for (node = 0; node < graph.num_nodes; node++) {
        printf(" %.9g", (double)from->by_node[node]);
    }
    printf("\n");
}

int main(void)
{
    for (;;) {
        memset(&graph, 0xff, sizeof graph);
        memset(&output, 0xff, sizeof output);
        if (!get(&graph.num_nodes, sizeof graph.num_nodes, 1)) {
            return 0;
        }
        if (!get(&graph.num_edges, sizeof graph.num_edges, 1) || graph.num_nodes > KDGAT_MAX_NODES
            || graph.num_edges > KDGAT_MAX_EDGES || !get(graph.can_id, 4, graph.num_nodes) || !get(graph.id_index, 2, graph.num_nodes)
            || !get(graph.continuous, 4, (size_t)graph.num_nodes * KDGAT_NODE_COLUMNS) || !get(graph.source, 2, graph.num_edges)
            || !get(graph.target, 2, graph.num_edges)
#if KDGAT_EDGE_COLUMNS > 0
            || !get(graph.edge_attributes, 4, (size_t)graph.num_edges * KDGAT_EDGE_COLUMNS)
#endif
        ) {
            fprintf(stderr, "the graph is cut short\n");
            return 1;
        }
#if KDGAT_PAIR
        kdgat_partner_score(&graph, &scratch, &of_partner);
#endif
        kdgat_model_score(&graph, &scratch, &output);
        kdgat_model_explain(&graph, &scratch, &output);
        print(&output);
#if KDGAT_PAIR
        print(&of_partner);
#endif
    }
}
