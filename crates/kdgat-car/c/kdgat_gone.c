/* IDs that fall silent for the rest of a drive. An ID is gone after ten times its longest silence L in attack-free traffic, and after more if
 * the traffic T that it was watched for has less than a thousand times L: 10 L max(1, 1000 L / T), at least five seconds. While more than a
 * quarter of the followed IDs are silent, and more than three, the car falls asleep, and none is gone. */
#include "kdgat_car.h"

#include <math.h>

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

#define TIMES_LONGER 10.0f
/* Traffic for each second of the longest silence from which on TIMES_LONGER is enough. */
#define EVIDENCE 1000.0f
#define LEAST_SECONDS 5.0f
#define FEWEST_GAPS 50.0f
/* Least silence of an ID that counts as silent with others. */
#define SILENT_SECONDS 1.0f
#define FEW_SILENT 3u
#define SILENT_OF 4u

float kdgat_gone_seconds(const kdgat_usual *usual)
{
    const float watched = usual->watched, longest = usual->longest_silence;
    float share, limit;
    if (usual->gaps < FEWEST_GAPS || longest <= 0.0f || watched <= 0.0f) {
        return INFINITY;
    }
    share = EVIDENCE * longest / watched;
    limit = TIMES_LONGER * longest * (share > 1.0f ? share : 1.0f);
    return limit > LEAST_SECONDS ? limit : LEAST_SECONDS;
}

static double silence_of(const kdgat_gone *watch, uint32_t at)
{
    return watch->state[at] == KDGAT_NOT_SEEN ? 0.0 : watch->clock - watch->seen[at];
}

/* Returns 1 if the silence of an ID has just become too long. */
static int is_over(const kdgat_gone *watch, const kdgat_profile *profile, uint32_t at)
{
    return watch->state[at] == KDGAT_SENDS && silence_of(watch, at) > (double)kdgat_gone_seconds(&profile->ids[at]);
}

/* Returns 1 if so many followed IDs are silent that the car falls asleep. */
static int is_asleep(const kdgat_gone *watch, const kdgat_profile *profile)
{
    uint32_t at, followed = 0, silent = 0;
    for (at = 0; at < profile->num_ids; at++) {
        const kdgat_usual *const usual = &profile->ids[at];
        const float longest = TIMES_LONGER * usual->longest_silence;
        if (watch->state[at] == KDGAT_NOT_SEEN || !(kdgat_gone_seconds(usual) < INFINITY)) {
            continue;
        }
        followed++;
        silent += silence_of(watch, at) > (double)(longest > SILENT_SECONDS ? longest : SILENT_SECONDS) ? 1u : 0u;
    }
    return silent > FEW_SILENT && SILENT_OF * silent > followed;
}

/* Moves the clock to the end of a window, and notes the IDs that it has. Both lists of IDs ascend. */
static void see(kdgat_gone *watch, const kdgat_profile *profile, const kdgat_graph *graph, double begin)
{
    const double end = begin + (double)graph->duration, step = end - watch->latest;
    uint32_t node, at = 0;
    if (watch->begun && step > 0.0) {
        watch->clock += step < KDGAT_LONGEST_STEP ? step : KDGAT_LONGEST_STEP;
    }
    watch->latest = end;
    watch->begun = 1;
    for (node = 0; node < graph->num_nodes; node++) {
        while (at < profile->num_ids && profile->ids[at].id < graph->can_id[node]) {
            at++;
        }
        if (at < profile->num_ids && profile->ids[at].id == graph->can_id[node] && graph->sends[node]) {
            watch->seen[at] = watch->clock;
            watch->state[at] = KDGAT_SENDS;
        }
    }
}

void kdgat_find_gone(kdgat_gone *watch, const kdgat_profile *profile, const kdgat_graph *graph, double begin, struct kdgat_result *result)
{
    int asleep = -1; /* not known yet */
    uint32_t at, node;
    see(watch, profile, graph, begin);
    for (at = 0; at < profile->num_ids; at++) {
        if (!is_over(watch, profile, at)) {
            continue;
        }
        asleep = asleep < 0 ? is_asleep(watch, profile) : asleep;
        if (asleep) {
            watch->state[at] = KDGAT_SETTLED;
            continue;
        }
        /* The history knows the frames between windows, too. */
        node = kdgat_place_of(graph, profile->ids[at].id);
        if (result->num_gone < KDGAT_NAMED_NODES && node < graph->num_nodes && graph->can_id[node] == profile->ids[at].id
            && graph->silence[node] > kdgat_gone_seconds(&profile->ids[at])) {
            watch->state[at] = KDGAT_SETTLED;
            result->gone[result->num_gone++] = profile->ids[at].id;
        }
    }
}

#endif
