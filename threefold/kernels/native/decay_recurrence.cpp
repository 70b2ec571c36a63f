/* S_t = Diag(α_t) S_{t−1} Diag(α'_t) + k_t⊗v_t,   o_t = S_tᵀ q_t
 *
 * The memory with decays and its gradients: decay_step.h runs one element, decay_forward.h
 * many, decay_backward.h the gradients. This file divides the work among threads.
 */
#include "decay_backward.h"
#include "decay_forward.h"
#include "decay_step.h"

namespace threefold {
namespace decay {
namespace {

/* The buffers of all threads in one workspace. */
template <typename real, typename Buffers>
struct Shared {
    const Inputs<real> &in;
    const Tasks tasks;
    int64_t each;

    explicit Shared(const Inputs<real> &in) : in(in), tasks(Tasks::of(in)) {
        Workspace<real> counted{nullptr};
        Buffers(counted, in, tasks);
        each = counted.used;
    }

    int64_t elements() const { return tasks.pieces() * each; }

    template <typename Pass>
    void run(real *workspace, const Pass &pass) const {
        tasks.run([&](int64_t piece, int64_t first, int64_t count) {
            Workspace<real> own{workspace + piece * each};
            pass.run(first, count, Buffers(own, in, tasks));
        });
    }
};

template <typename real>
int forward(const Inputs<real> &in, real *out, real *new_state, real *checkpoints,
            real *workspace, bool check) {
    if (const int status = in.status()) return status;
    std::atomic<bool> growth{false};
    if (in.length == 1 && !checkpoints) {
        run_step(Step<real>{in, out, new_state, growth});
    } else {
        const Shared<real, ForwardBuffers<real>> shared(in);
        shared.run(workspace,
                   Forward<real>{in, shared.tasks, out, new_state, checkpoints, growth});
    }
    return check && growth ? THREEFOLD_BAD_DECAY : THREEFOLD_OK;
}

/* Copies of a gradient that is summed over heads of a group, parts of columns, or rows. */
template <typename real>
struct Copies {
    int64_t count, size;
    real *data;

    Copies(Workspace<real> &workspace, real *sum, int64_t count, int64_t size)
        : count(count), size(size), data(sum) {
        if (count > 1 && size > 0) data = workspace.take(count * size);
    }

    void add(real *sum, int64_t threads) const {
        if (count == 1 || !sum) return;
        split(vectors_of<real>(size), useful_threads(threads, count * size), [&](int64_t a, int64_t b) {
            for_each_vector<real>(a, b, size, [&](int64_t at, auto lanes) {
                Vector<real> total = {};
                for (int64_t i = 0; i < count; ++i) total += lanes.load(data + i * size + at);
                lanes.store(sum + at, total);
            });
        });
    }
};

template <typename real>
struct AllCopies {
    Copies<real> query, key, log_decay, bonus;

    AllCopies(Workspace<real> &workspace, const Inputs<real> &in, int64_t parts,
              const Gradients<real> &to)
        : query(workspace, to.query, in.heads_of_group() * parts, elements(in, in.groups * in.keys)),
          key(workspace, to.key, in.heads_of_group() * parts, elements(in, in.groups * in.keys)),
          log_decay(workspace, to.log_decay, parts, elements(in, in.heads * in.decays)),
          bonus(workspace, to.bonus, in.batch * parts, in.bonus ? in.heads * in.keys : 0) {}

    static int64_t elements(const Inputs<real> &in, int64_t size) {
        return in.batch * in.length * size;
    }
};

template <typename real>
int backward(const Inputs<real> &in, const Gradients<real> &to, real *workspace,
             Field<real> grad_out, const real *grad_state, const real *checkpoints) {
    if (const int status = in.status()) return status;
    const Shared<real, BackwardBuffers<real>> shared(in);
    const int64_t parts = shared.tasks.parts, threads = shared.tasks.threads;
    Workspace<real> behind{workspace, shared.elements()};
    const AllCopies<real> copies(behind, in, parts, to);
    Gradients<real> direct = to;
    direct.query = copies.query.data;
    direct.key = copies.key.data;
    direct.log_decay = to.log_decay ? copies.log_decay.data : nullptr;
    direct.bonus = copies.bonus.data;
    shared.run(workspace,
               Backward<real>{in, shared.tasks, grad_out, grad_state, checkpoints, direct});
    copies.query.add(to.query, threads);
    copies.key.add(to.key, threads);
    copies.log_decay.add(to.log_decay, threads);
    copies.bonus.add(to.bonus, threads);
    return THREEFOLD_OK;
}

/* Numbers of workspace that forward or backward needs. */
template <typename real>
int workspace(int64_t *elements, const Inputs<real> &in, bool backward) {
    if (const int status = in.status()) return status;
    if (!backward) {
        *elements = Shared<real, ForwardBuffers<real>>(in).elements();
        return THREEFOLD_OK;
    }
    const Shared<real, BackwardBuffers<real>> shared(in);
    Workspace<real> behind{nullptr, shared.elements()};
    AllCopies<real>(behind, in, shared.tasks.parts, {});
    *elements = behind.used;
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace decay
}  // namespace threefold

#define SIZES                                                                                     \
    int64_t batch, int64_t length, int64_t heads, int64_t groups, int64_t keys, int64_t values,   \
        int64_t decays
#define POINTERS(real)                                                                            \
    const real *query, const real *key, const real *value, const real *log_decay,                 \
        const real *log_decay_value, const real *bonus, const real *state, const int64_t *lengths, \
        const int64_t *strides
#define INPUTS                                                                                    \
    {                                                                                             \
        {query, strides}, {key, strides + 3}, {value, strides + 6}, {log_decay, strides + 9},     \
            {log_decay_value, strides + 12}, bonus, state, lengths, batch, length, heads, groups, \
            keys, values, decays, threads                                                         \
    }
#define DEFINE(real, suffix)                                                                      \
    int threefold_decay_recurrence_forward_##suffix(                                              \
        real *out, real *new_state, real *checkpoints, real *workspace, POINTERS(real), SIZES,    \
        int64_t check, int64_t threads) {                                                         \
        return threefold::decay::forward<real>(INPUTS, out, new_state, checkpoints, workspace,           \
                                        check != 0);                                              \
    }                                                                                             \
    int threefold_decay_recurrence_backward_##suffix(                                             \
        real *grad_query, real *grad_key, real *grad_value, real *grad_log_decay,                 \
        real *grad_log_decay_value, real *grad_bonus, real *grad_state, real *workspace,          \
        const real *grad_out, const real *grad_new_state, const real *checkpoints,                \
        POINTERS(real), SIZES, int64_t threads) {                                                 \
        return threefold::decay::backward<real>(INPUTS,                                                  \
                                         {grad_query, grad_key, grad_value, grad_log_decay,       \
                                          grad_log_decay_value, grad_bonus, grad_state},          \
                                         workspace, {grad_out, strides + 15}, grad_new_state,     \
                                         checkpoints);                                            \
    }                                                                                             \
    int threefold_decay_recurrence_workspace_##suffix(int64_t *elements, SIZES, int64_t on_value, \
                                                      int64_t with_bonus, int64_t backward,       \
                                                      int64_t threads) {                          \
        const real some = 0;                                                                      \
        const real *query = nullptr, *key = nullptr, *value = nullptr, *log_decay = nullptr;      \
        const real *log_decay_value = on_value ? &some : nullptr, *state = nullptr;               \
        const real *bonus = with_bonus ? &some : nullptr;                                         \
        const int64_t *lengths = nullptr, none[15] = {}, *strides = none;                         \
        return threefold::decay::workspace<real>(elements, INPUTS, backward != 0);                       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
