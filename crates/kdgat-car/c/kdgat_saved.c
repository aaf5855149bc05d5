/* Saves and loads a calibration: numbers in little-endian order whatever the machine, then a checksum.
 *
 *   magic u32, version u32, model u64, precision u32, values u32, median f64, spread f64, threshold f64,
 *   classifier with a list of IDs: evidence f64, number u32, IDs u32 [KDGAT_CALIBRATION_IDS], zeros after the last
 *   autoencoder: means f64, rows of the factor f64
 *   CRC-32 of all bytes before it, u32 */
#include "kdgat_calibrate.h"

#include <string.h>

#define MAGIC 0x4347444bu /* "KDGC" */
#define VERSION 1u

#if KDGAT_ID_LIST
#define VALUES KDGAT_CALIBRATION_IDS
#elif KDGAT_MODEL == KDGAT_MODEL_VGAE
#define VALUES KDGAT_PROFILE_VALUES
#else
#define VALUES 0u
#endif

static void put_u32(uint8_t **to, uint32_t value)
{
    uint32_t i;
    for (i = 0; i < 4u; i++) {
        *(*to)++ = (uint8_t)(value >> (8u * i));
    }
}

static void put_u64(uint8_t **to, uint64_t value)
{
    put_u32(to, (uint32_t)(value & 0xffffffffu));
    put_u32(to, (uint32_t)(value >> 32));
}

static void put_f64(uint8_t **to, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u64(to, bits);
}

static uint32_t get_u32(const uint8_t **from)
{
    uint32_t value = 0, i;
    for (i = 0; i < 4u; i++) {
        value |= (uint32_t) * (*from)++ << (8u * i);
    }
    return value;
}

static uint64_t get_u64(const uint8_t **from)
{
    const uint64_t low = get_u32(from);
    return low | (uint64_t)get_u32(from) << 32;
}

static double get_f64(const uint8_t **from)
{
    const uint64_t bits = get_u64(from);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* CRC-32 (IEEE 802.3), bit by bit: it is computed rarely. */
static uint32_t crc32(const uint8_t *bytes, uint32_t length)
{
    uint32_t crc = 0xffffffffu, i, bit;
    for (i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (bit = 0; bit < 8u; bit++) {
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

uint32_t kdgat_save(const kdgat_state *state, uint8_t *bytes, uint32_t capacity)
{
    const kdgat_calibration_state *const car = &state->calibration;
    uint8_t *to = bytes;
#if KDGAT_ID_LIST || KDGAT_MODEL == KDGAT_MODEL_VGAE
    uint32_t i;
#endif

    if (!car->calibrated || capacity < KDGAT_SAVED_BYTES) {
        return 0;
    }
    put_u32(&to, MAGIC);
    put_u32(&to, VERSION);
    put_u64(&to, KDGAT_MODEL_DIGEST);
    put_u32(&to, KDGAT_INT8);
    put_u32(&to, VALUES);
    put_f64(&to, car->median);
    put_f64(&to, car->spread);
    put_f64(&to, car->threshold);
#if KDGAT_ID_LIST
    put_f64(&to, car->evidence);
    put_u32(&to, car->num_ids);
    for (i = 0; i < KDGAT_CALIBRATION_IDS; i++) {
        put_u32(&to, i < car->num_ids ? car->ids[i] : 0u);
    }
#elif KDGAT_MODEL == KDGAT_MODEL_VGAE
    for (i = 0; i < KDGAT_PROFILE_VALUES; i++) {
        put_f64(&to, car->mean[i]);
    }
    for (i = 0; i < KDGAT_FACTOR_VALUES; i++) {
        put_f64(&to, car->factor[i]);
    }
#endif
    put_u32(&to, crc32(bytes, KDGAT_SAVED_BYTES - 4u));
    return KDGAT_SAVED_BYTES;
}

/* Returns 1 for NaN and infinity. */
static int is_no_number(double value)
{
    return !(value - value == 0.0);
}

/* Reads the values after the header; returns 0 if one is out of range. */
static int get_values(const uint8_t *from, kdgat_calibration_state *car)
{
#if KDGAT_ID_LIST || KDGAT_MODEL == KDGAT_MODEL_VGAE
    uint32_t i;
#endif

    car->median = get_f64(&from);
    car->spread = get_f64(&from);
    car->threshold = get_f64(&from);
    if (is_no_number(car->median) || is_no_number(car->spread) || is_no_number(car->threshold) || !(car->spread > 0.0)) {
        return 0;
    }
#if KDGAT_ID_LIST
    car->evidence = get_f64(&from);
    car->num_ids = get_u32(&from);
    if (is_no_number(car->evidence) || car->evidence < 0.0 || car->num_ids > KDGAT_CALIBRATION_IDS) {
        return 0;
    }
    for (i = 0; i < car->num_ids; i++) {
        car->ids[i] = get_u32(&from);
        if (i > 0u && car->ids[i] <= car->ids[i - 1u]) {
            return 0;
        }
    }
#elif KDGAT_MODEL == KDGAT_MODEL_VGAE
    for (i = 0; i < KDGAT_PROFILE_VALUES; i++) {
        car->mean[i] = get_f64(&from);
        if (is_no_number(car->mean[i])) {
            return 0;
        }
    }
    for (i = 0; i < KDGAT_FACTOR_VALUES; i++) {
        car->factor[i] = get_f64(&from);
        if (is_no_number(car->factor[i])) {
            return 0;
        }
    }
    for (i = 0; i < KDGAT_PROFILE_VALUES; i++) {
        /* The diagonal of the factor. */
        if (!(car->factor[i * (i + 3u) / 2u] > 0.0)) {
            return 0;
        }
    }
#endif
    car->calibrated = 1;
    return 1;
}

kdgat_status kdgat_load(kdgat_state *state, const uint8_t *bytes, uint32_t length)
{
    const uint8_t *from = bytes, *end;
    kdgat_calibration_state car;

    if (length != KDGAT_SAVED_BYTES) {
        return KDGAT_LENGTH;
    }
    if (get_u32(&from) != MAGIC || get_u32(&from) != VERSION) {
        return KDGAT_NO_CALIBRATION;
    }
    end = bytes + KDGAT_SAVED_BYTES - 4u;
    if (get_u32(&end) != crc32(bytes, KDGAT_SAVED_BYTES - 4u)) {
        return KDGAT_CHECKSUM;
    }
    if (get_u64(&from) != KDGAT_MODEL_DIGEST || get_u32(&from) != KDGAT_INT8 || get_u32(&from) != VALUES) {
        return KDGAT_OTHER_MODEL;
    }
    memset(&car, 0, sizeof car);
    if (!get_values(from, &car)) {
        return KDGAT_VALUES;
    }
    state->calibration = car;
    return KDGAT_OK;
}
