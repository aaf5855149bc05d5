/* kdgat: a trained intrusion detector for one CAN bus.
 *
 * Feed every frame of the bus to kdgat_push in the order of arrival. After each KDGAT_STRIDE frames it returns the verdict about the
 * last KDGAT_WINDOW frames. README.md says which model this is and what to expect of it.
 *
 *   static kdgat_state detector;
 *   kdgat_result result;
 *   kdgat_init(&detector);
 *   for each frame: if (kdgat_push(&detector, &frame, &result) && result.attack) { ... }
 *
 * The code allocates nothing, does no input or output, does not recurse, and keeps all state in the kdgat_state that the caller
 * owns. Different states may be used by different threads at the same time; one state must not. It needs <stdint.h>, <string.h> and
 * <math.h>, and IEEE 754 arithmetic without -ffast-math.
 */
#ifndef KDGAT_CAR_H
#define KDGAT_CAR_H

#include <stdint.h>

#include "kdgat_config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A frame on the bus. */
typedef struct kdgat_frame {
    double time;      /* seconds, on any clock that does not jump; microseconds matter */
    uint32_t id;      /* 11 or 29 bits, without flags; the highest three bits are ignored */
    uint8_t length;   /* payload bytes: 0 to 8, up to 64 for CAN FD, of which the detector reads the first 8 */
    uint8_t data[8];  /* payload; bytes from length on are ignored */
} kdgat_frame;

/* Nodes named in a result. */
#define KDGAT_NAMED_NODES 3

/* The verdict about one window. */
typedef struct kdgat_result {
    uint64_t window;      /* number of the window, from 0 */
    uint64_t first_frame; /* number of its first frame, from 0 */
    double time;          /* time of its first frame, in seconds */
    double score;         /* classifier: P(attack), 0 to 1; autoencoder: difficulty, from 0; both together: mean of their standardised
                           * scores. Higher is more suspicious */
#if KDGAT_PAIR
    double classifier;    /* P(attack) */
    double autoencoder;   /* difficulty */
#endif
    double deviations;    /* robust deviations above what is usual for the calibrated car; 0 without a calibration */
    uint8_t attack;       /* 1: attack, 0: normal */
    uint8_t calibrated;   /* 1: deviations decided, 0: the score decided */
    /* IDs that weigh most, the heaviest first; for a classifier only for alarms, or if kdgat_explain_all is on. */
    uint8_t num_nodes;
    uint32_t id[KDGAT_NAMED_NODES];
    float weight[KDGAT_NAMED_NODES]; /* classifier: drop of the log odds without the ID; autoencoder: its error; of two models, the one to
                                      * which the window is more unusual names them */
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    /* IDs that differ most from the car's profile, the most surprising first; IDs without anything unusual are left out. */
    uint8_t num_culprits;
    uint32_t culprit[KDGAT_NAMED_NODES];
    float surprise[KDGAT_NAMED_NODES]; /* sum of -ln of the shares of their unusual frames in attack-free traffic, in nats; of an ID that
                                        * is gone infinite */
    /* IDs that are gone since this window: silent for far longer than ever in attack-free traffic. Each is named once until it returns. They
     * make the window an attack whatever its score, and come first among the culprits. */
    uint8_t num_gone;
    uint32_t gone[KDGAT_NAMED_NODES];
#endif
} kdgat_result;

#include "kdgat_internal.h"
#include "kdgat_gone.h"
#include "kdgat_window.h"

/* All state of a detector. Its contents are private; sizeof is documented in README.md. */
struct kdgat_state {
    kdgat_window_state window;           /* frames, features, number of windows */
    kdgat_calibration_state calibration; /* the car's scale, and the windows of a calibration in progress */
    kdgat_graph graph;                   /* graph of the last window */
    kdgat_model_output output;
#if KDGAT_PAIR
    kdgat_model_output of_partner;       /* of the autoencoder */
#endif
    kdgat_scratch scratch;
    uint8_t explains_all;
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    kdgat_gone gone;                     /* IDs that may fall silent */
#endif
};

/* Begins to follow the IDs of the profile in use anew (kdgat_car.c). */
void kdgat_forget_gone(kdgat_state *state);

/* Sets a detector to its initial state: no frames, no calibration. Any contents are overwritten. */
void kdgat_init(kdgat_state *state);

/* Adds a frame. Returns 1 and sets *result if the frame completed a window, else 0 and leaves *result unchanged. A window is complete
 * when the frame after it has arrived. */
int kdgat_push(kdgat_state *state, const kdgat_frame *frame, kdgat_result *result);

/* on = 1: a classifier names the IDs that weigh most for every window, not only for alarms (slower). */
void kdgat_explain_all(kdgat_state *state, int on);

#ifdef __cplusplus
}
#endif

#endif
