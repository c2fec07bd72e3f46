/* One training step of a decomposed weight in one pass over memory: what learner.py says in tensor
   code, with every number read and written once. A weight is rows of `inner` numbers; row r belongs
   to the output channel r % channels, which has one mask. */

#include <math.h>
#include <stdint.h>

typedef struct {
    int64_t rows, channels, inner, threads;
    const float *grad, *before, *mask, *support, *linear, *curvature, *bound;
    float *theta, *shared, *delta, *mean, *square;
    float even; /* the curvature of all entries, where there is no tensor of them */
    float lr, rate, l1, decay, debias, snap;
} Step;

typedef struct {
    int64_t count;
    const int64_t *at;
    const float *start, *linear, *curvature, *bound, *centre, *snap, *low, *high;
} Near;

#define BETA1 0.9f
#define BETA2 0.999f
#define EPSILON 1e-8f
#define LIMIT 1.001f
#define INLINE static inline __attribute__((always_inline))

INLINE float clip(float x, float bound) {
    x = x > bound ? bound : x;
    return x < -bound ? -bound : x;
}

/* The movement after a proximal step under `linear + clip(curvature * moved, +-bound)`, of at most
   `limit`; see clipped_prox in proximal.py. */
INLINE float prox(float x, float step, float linear, float curvature, float bound, float limit) {
    const float moved = x - step * linear, within = moved / (1 + step * curvature);
    const float pull = within * curvature, clipped = clip(pull, bound);
    const float z = clipped == pull ? within : moved - step * clipped;
    return x + clip(z - x, limit);
}

enum { FIXED, EVEN, UNBOUNDED, CURVE }; /* what holds the shared weights */
enum { DENSE, PRICE, SUPPORT };         /* what keeps the delta sparse */

INLINE void row(const Step *s, int64_t r, const int held, const int sparse) {
    const int64_t inner = s->inner, from = r * inner;
    const float m = s->mask ? s->mask[r % s->channels] : 1.0f, per_mask = 1 / m;
    const float lr = s->lr, rate = s->rate, l1 = s->l1, decay = s->decay;
    const float even = s->even, debias = s->debias, snap = s->snap;
    const float *grad = s->grad + from, *before = s->before + from;
    const float *linear = s->linear + from, *curvature = s->curvature + from;
    const float *bound = s->bound + from, *support = s->support + from;
    float *theta = s->theta + from, *shared = s->shared + from;
    float *delta = s->delta + from, *mean = s->mean + from;
    float *square = s->square + from;

#pragma omp simd
    for (int64_t i = 0; i < inner; i++) {
        const float g = grad[i] + decay * theta[i];
        const float first = mean[i] + (g - mean[i]) * (1 - BETA1);
        const float second = square[i] * BETA2 + g * g * (1 - BETA2);
        mean[i] = first;
        square[i] = second;
        const float inverse = 1 / (sqrtf(second) * debias + EPSILON);
        const float towards = rate * (first * inverse), size = lr * inverse;
        const float limit = LIMIT * (fabsf(towards) > lr ? fabsf(towards) : lr);
        float part = shared[i];
        if (held != FIXED) {
            const float step = size * per_mask;
            float moved = part - before[i] - towards;
            if (held == CURVE) {
                moved = prox(moved, step, linear[i], curvature[i], bound[i], limit);
            } else {
                moved = prox(moved, step, 0, held == EVEN ? even : curvature[i], INFINITY, limit);
            }
            part = before[i] + (fabsf(moved) <= snap ? 0 : moved);
            shared[i] = part;
        }
        float own = delta[i] - towards;
        if (sparse == SUPPORT) own *= support[i];
        if (sparse == PRICE) {
            const float most = size * l1 < limit ? size * l1 : limit;
            own -= clip(own, most);
        }
        delta[i] = own;
        theta[i] = part * m + own;
    }
}

#define ROWS(held, sparse)                                                        \
    _Pragma("omp parallel for num_threads((int)s->threads) if (s->threads > 1)")  \
    for (int64_t r = 0; r < s->rows; r++) row(s, r, held, sparse)

#define SPARSE(held)                              \
    do {                                          \
        if (s->support) { ROWS(held, SUPPORT); }  \
        else if (s->l1 > 0) { ROWS(held, PRICE); } \
        else { ROWS(held, DENSE); }               \
    } while (0)

void sigmatau_step(const Step *s) {
    if (s->bound) SPARSE(CURVE);
    else if (s->curvature) SPARSE(UNBOUNDED);
    else if (s->even >= 0) SPARSE(EVEN);
    else SPARSE(FIXED);
}

/* Take the step of the shared weights again at single entries, each under a curve of its own, from
   where they were (`start`). To be called after sigmatau_step. */
void sigmatau_near(const Step *s, const Near *n) {
    for (int64_t k = 0; k < n->count; k++) {
        const int64_t i = n->at[k];
        const float m = s->mask ? s->mask[i / s->inner % s->channels] : 1.0f;
        const float inverse = 1 / (sqrtf(s->square[i]) * s->debias + EPSILON);
        const float step = s->lr * inverse / m;
        const float towards = s->rate * (s->mean[i] * inverse);
        const float limit = LIMIT * (fabsf(towards) > s->lr ? fabsf(towards) : s->lr);
        float moved = n->start[k] - s->before[i] - towards - n->centre[k];
        moved = prox(moved, step, n->linear[k], n->curvature[k], n->bound[k], limit);
        moved = n->centre[k] + (fabsf(moved) <= n->snap[k] ? 0 : moved);
        moved = moved < n->low[k] ? n->low[k] : moved > n->high[k] ? n->high[k] : moved;
        s->shared[i] = s->before[i] + (fabsf(moved) <= s->snap ? 0 : moved);
        s->theta[i] = s->shared[i] * m + s->delta[i];
    }
}

/* The gradient of the mask's logits: per channel, the product of theta's gradient and the shared
   weights, summed. In partial sums, which the compiler can keep side by side in a register. */
void sigmatau_logits(const Step *s, float *out) {
    enum { LANES = 16 };
    for (int64_t c = 0; c < s->channels; c++) out[c] = 0;
    for (int64_t r = 0; r < s->rows; r++) {
        const float *grad = s->grad + r * s->inner;
        const float *shared = s->shared + r * s->inner;
        float lane[LANES] = {0};
        int64_t i = 0;
        for (; i + LANES <= s->inner; i += LANES)
            for (int64_t j = 0; j < LANES; j++) lane[j] += grad[i + j] * shared[i + j];
        for (; i < s->inner; i++) lane[0] += grad[i] * shared[i];
        float sum = 0;
        for (int64_t j = 0; j < LANES; j++) sum += lane[j];
        out[r % s->channels] += sum;
    }
    for (int64_t c = 0; c < s->channels; c++) out[c] *= s->mask[c] * (1 - s->mask[c]);
}
