/* Every operation, once; threefold.h includes this for float and for double.
 *
 * The order is always: outputs, workspace, inputs (pointers), then sizes and flags (int64_t), then
 * numbers (double), the last integer being the number of threads. Arrays are contiguous, the last
 * axis fastest. `optional` marks pointers that may be null. tests/kernels/test_library.py holds
 * the table of library.py against this file.
 */
#define optional

/* y_t = bias + Σ_k weight_k · x_{t−K+1+k}, then SiLU if asked; x_s of s < 0 comes from the state.
 *   y [B, L, D] · new_state [B, K−1, D] · workspace as short_convolution_workspace says
 *   x [B, L, D] · weight [D, K] · bias [D] · state [B, K−1, D] · lengths [B]
 * Elements of x lie `stride` numbers apart, through all rows. Those at t ≥ length are not read; y is
 * 0 there. K ≤ 64. */
THREEFOLD_API int THREEFOLD_NAME(short_convolution_forward)(
    real *y, real *new_state, real *workspace,
    const real *x, const real *weight, const real *optional bias, const real *optional state,
    const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t channels, int64_t taps, int64_t stride, int64_t silu,
    int64_t threads);

/* Gradients of the above, with the value before the SiLU computed again.
 *   grad_x [B, L, D] · grad_weight [D, K] · grad_bias [D] · grad_state [B, K−1, D]
 *   workspace as short_convolution_workspace says · grad_y [B, L, D] · grad_new_state [B, K−1, D] */
THREEFOLD_API int THREEFOLD_NAME(short_convolution_backward)(
    real *grad_x, real *grad_weight, real *grad_bias, real *grad_state, real *workspace,
    const real *grad_y, const real *grad_new_state,
    const real *x, const real *weight, const real *optional bias, const real *optional state,
    const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t channels, int64_t taps, int64_t stride, int64_t silu,
    int64_t threads);

/* `numbers` of type real that the workspace of a pass must hold. */
THREEFOLD_API int THREEFOLD_NAME(short_convolution_workspace)(
    int64_t *numbers,
    int64_t batch, int64_t channels, int64_t taps, int64_t backward, int64_t threads);

/* y_t = gate_t u_t, u_t = Σ_m kernel_m x_{t−m} + skip x_t for first ≤ t < S, by Fourier transforms of
 * `size` places, a power of two not below K; x is 0 before its first element. Two vectors of channels
 * make a place.
 *   y, before [B, S−first, D], u itself · workspace [threads, 2, size, place] · x [B, S, D]
 *   kernel [D, K] · skip [D] · gate [B, S−first, D], its elements `gate_step` numbers apart
 *   twiddle as native/fourier.h says, up to `size` */
THREEFOLD_API int THREEFOLD_NAME(long_convolution_forward)(
    real *y, real *optional before, real *workspace,
    const real *x, const real *kernel, const real *optional skip, const real *optional gate,
    const real *twiddle,
    int64_t batch, int64_t source, int64_t channels, int64_t taps, int64_t size, int64_t first,
    int64_t gate_step, int64_t threads);

/* Gradients of the above, but for that of gate, which is u⊙∂y.
 *   grad_x [B, S, D] · grad_kernel [D, K] · grad_skip [D] · workspace [threads, 4, size, place]
 *   grad_y [B, S−first, D] */
THREEFOLD_API int THREEFOLD_NAME(long_convolution_backward)(
    real *grad_x, real *grad_kernel, real *optional grad_skip, real *workspace,
    const real *grad_y, const real *x, const real *kernel, const real *optional skip,
    const real *optional gate, const real *twiddle,
    int64_t batch, int64_t source, int64_t channels, int64_t taps, int64_t size, int64_t first,
    int64_t gate_step, int64_t threads);

/* The frequencies of kernel_1 … kernel_{2·tile−1}, at the tile's place in `spectra`.
 *   spectra: [groups, 2·tile, place] for the tiles 64, 128, … one after another · kernel [D, K] */
THREEFOLD_API int THREEFOLD_NAME(online_convolution_spectrum)(
    real *spectra, const real *kernel, const real *twiddle,
    int64_t channels, int64_t taps, int64_t tile, int64_t threads);

/* One element of a long convolution, with all that earlier elements do to it already in `pending`.
 *   y, x [B, D] · pending, inputs: rows of elements [D], `pending_row` and `inputs_row` numbers apart
 *   workspace [threads, 2·largest tile, place] · near [64, D]: the first taps, zeros behind the last
 *   skip [D] · spectra: those of tiles 64, 128, … one after another · positions [B]
 * `inputs` has all elements before position[b], and x is put there behind them. `pending` is brought up
 * to date for that element, from nothing if `rebuild`. A row that gets no element is given as
 * −1 − position: it is only rebuilt. */
THREEFOLD_API int THREEFOLD_NAME(online_convolution)(
    real *y, real *pending, real *inputs, real *workspace,
    const real *x, const real *near, const real *optional skip,
    const real *optional spectra, const real *optional twiddle, const int64_t *positions,
    int64_t batch, int64_t channels, int64_t pending_row, int64_t inputs_row, int64_t rebuild,
    int64_t threads);

/* y_l = Re Σ_n c_n w_n^l of every channel, l counted back from a row's last element if `backwards`.
 *   y [R, L, D] · workspace, numbers as vandermonde_workspace says
 *   factor [D, N, 2], w · coefficient [R, D, N, 2], c · lengths [R]. y is 0 at t ≥ length. */
THREEFOLD_API int THREEFOLD_NAME(vandermonde_product)(
    real *y, real *workspace, double *numbers,
    const double *factor, const double *coefficient, const int64_t *optional lengths,
    int64_t rows, int64_t length, int64_t channels, int64_t size, int64_t backwards,
    int64_t threads);

/* Σ_l x_l w_n^l and Σ_l l x_l w_n^{l−1}, l as above.
 *   moments, slopes [R, D, N, 2] · workspace, numbers as vandermonde_workspace says · x [R, L, D]. Elements at t ≥ length are not read. */
THREEFOLD_API int THREEFOLD_NAME(vandermonde_moments)(
    double *moments, double *optional slopes, real *workspace, double *numbers,
    const real *x, const double *factor, const int64_t *optional lengths,
    int64_t rows, int64_t length, int64_t channels, int64_t size, int64_t backwards,
    int64_t threads);

/* Workspaces of the two, for moments if asked: how many of type real, and how many doubles. */
THREEFOLD_API int THREEFOLD_NAME(vandermonde_workspace)(
    int64_t *reals_and_doubles, int64_t size, int64_t moments, int64_t threads);

/* s = w ⊙ s₋ + b x, y = Σ_n Re(conj(c_n) s_n) + skip x for each channel: one element of each row.
 *   y, x [B, D] · new_state, state [B, D, 2, N], or [B, D, N, 2] if `pairs`
 *   factor, w, write, b, read, c [D, 2, N] · skip [D] */
THREEFOLD_API int THREEFOLD_NAME(filter_step)(
    real *y, real *new_state,
    const real *x, const real *state, const real *factor, const real *write, const real *read,
    const real *optional skip,
    int64_t batch, int64_t channels, int64_t numbers, int64_t pairs, int64_t threads);

/* F_jk = Σ_n (i σ_k p_jn − c_k q_jn) / (c_k² m_n − σ_k² − 2 i σ_k c_k r_n), float64 for both.
 *   sums [D, 4, 2, K], real parts, then imaginary parts · p, q [D, 4, N] · square, m [D, N]
 *   real_part, r [D, N] · points [2, K], σ and c, K a multiple of 8 */
THREEFOLD_API int THREEFOLD_NAME(cauchy_forward)(
    double *sums,
    const double *p, const double *q, const double *square, const double *real_part,
    const double *points,
    int64_t channels, int64_t size, int64_t count, int64_t threads);

/* Gradients of the above. */
THREEFOLD_API int THREEFOLD_NAME(cauchy_backward)(
    double *grad_p, double *grad_q, double *grad_square, double *grad_real_part,
    const double *grad_sums, const double *p, const double *q, const double *square,
    const double *real_part, const double *points,
    int64_t channels, int64_t size, int64_t count, int64_t threads);

/* y = x weightᵀ + bias for a few rows; a row's bits depend neither on the others nor on threads.
 *   y [R, O] · workspace [R, I′], needed where I is no I′ = multiple of 32
 *   x [R, I] · weight [O, I] · bias [O] */
THREEFOLD_API int THREEFOLD_NAME(linear)(
    real *y, real *optional workspace,
    const real *x, const real *weight, const real *optional bias,
    int64_t rows, int64_t inputs, int64_t outputs, int64_t threads);

/* The same with weight and bias in bfloat16, summed as `real`; y and x are bfloat16 if `narrow`.
 *   workspace [R, I′] is always needed */
THREEFOLD_API int THREEFOLD_NAME(linear_narrow)(
    void *y, real *workspace,
    const void *x, const uint16_t *weight, const uint16_t *optional bias,
    int64_t rows, int64_t inputs, int64_t outputs, int64_t narrow, int64_t threads);

/* y = scale ⊙ (x codesᵀ) + bias: the same with weights of 8 bits and one scale for each output.
 *   codes [O, I] · scale [O] · workspace as for `linear` */
THREEFOLD_API int THREEFOLD_NAME(linear_codes)(
    real *y, real *optional workspace,
    const real *x, const int8_t *codes, const real *scale, const real *optional bias,
    int64_t rows, int64_t inputs, int64_t outputs, int64_t threads);

/* y = u / √(mean(u²) + eps) ⊙ weight ⊙ silu(gate), u = x; if `gate_first`, the last factor is in u.
 *   y, x, gate [N, D] · weight [G, D], row n using n mod G; N is a multiple of G */
THREEFOLD_API int THREEFOLD_NAME(rms_norm_forward)(
    real *y, const real *x, const real *optional weight, const real *optional gate,
    int64_t rows, int64_t size, int64_t groups, int64_t gate_first, int64_t threads, double eps);

/* Gradients of the above.
 *   grad_x, grad_gate, grad_y [N, D] · grad_weight [G, D] · workspace as rms_norm_workspace says */
THREEFOLD_API int THREEFOLD_NAME(rms_norm_backward)(
    real *grad_x, real *grad_weight, real *optional grad_gate, real *workspace,
    const real *grad_y, const real *x, const real *optional weight, const real *optional gate,
    int64_t rows, int64_t size, int64_t groups, int64_t gate_first, int64_t threads, double eps);

/* `numbers` of type real that the workspace of the backward pass must hold. */
THREEFOLD_API int THREEFOLD_NAME(rms_norm_workspace)(
    int64_t *numbers, int64_t rows, int64_t size, int64_t groups, int64_t threads);

/* y = silu(gate) ⊙ x, all of `count` numbers. */
THREEFOLD_API int THREEFOLD_NAME(swiglu_forward)(
    real *y, const real *gate, const real *x, int64_t count, int64_t threads);

/* Gradients of the above. */
THREEFOLD_API int THREEFOLD_NAME(swiglu_backward)(
    real *grad_gate, real *grad_x, const real *grad_y, const real *gate, const real *x,
    int64_t count, int64_t threads);

/* y_rnj = Σ_i x_rni · weight_nij, or weight_nji if `turned`: width / block square blocks of a diagonal.
 * The strides are those of rows; the workspace has room for (width + 15) · block numbers.
 *   y, x [rows, width] · weight [width / block, block, block] */
THREEFOLD_API int THREEFOLD_NAME(block_product)(
    real *y, real *workspace, const real *x, const real *weight, int64_t rows, int64_t width,
    int64_t block, int64_t x_stride, int64_t y_stride, int64_t turned, int64_t threads);

/* The gradient of its weight. */
THREEFOLD_API int THREEFOLD_NAME(block_product_weight)(
    real *grad_weight, real *workspace, const real *grad_y, const real *x, int64_t rows,
    int64_t width, int64_t block, int64_t x_stride, int64_t y_stride, int64_t threads);

/* Channels i and i + half of x turned by the angle of pair i at the element's position, or `back`; the
 * channels from 2·half on stay. Element t of row b is at entry starts_b + t of the tables.
 *   y, x [B, L, H, size] · cos, sin [entries, half] · starts [B] */
THREEFOLD_API int THREEFOLD_NAME(rotary)(
    real *y, const real *x, const real *cos, const real *sin, const int64_t *starts,
    int64_t batch, int64_t length, int64_t heads, int64_t size, int64_t half, int64_t entries,
    int64_t back, int64_t threads);

/* y_n,t = x_t + (x_{t−1} − x_t) ⊙ share_n; x_{−1} is the state, the last real element the new one.
 *   y [N, B, L, D] · new_state, state [B, D] · x [B, L, D] · share [N, D] · lengths [B]
 * Elements at t ≥ length are not read; y is 0 there. */
THREEFOLD_API int THREEFOLD_NAME(token_shift_forward)(
    real *y, real *new_state,
    const real *x, const real *share, const real *optional state, const int64_t *optional lengths,
    int64_t shares, int64_t batch, int64_t length, int64_t channels, int64_t threads);

/* Gradients of the above, for L ≥ 1.
 *   grad_x [B, L, D] · grad_share [N, D] · grad_state [B, D] · workspace as token_shift_workspace says
 *   grad_y [N, B, L, D] · grad_new_state [B, D] */
THREEFOLD_API int THREEFOLD_NAME(token_shift_backward)(
    real *grad_x, real *grad_share, real *grad_state, real *workspace,
    const real *grad_y, const real *grad_new_state,
    const real *x, const real *share, const real *optional state, const int64_t *optional lengths,
    int64_t shares, int64_t batch, int64_t length, int64_t channels, int64_t threads);

/* `numbers` of type real that the workspace of the backward pass must hold. */
THREEFOLD_API int THREEFOLD_NAME(token_shift_workspace)(
    int64_t *numbers, int64_t shares, int64_t batch, int64_t channels, int64_t threads);

/* S = e^{ΔA} ⊙ S₋ + w B x,  y = (C·S + D x)·silu(gate),  Δ = delta + bias, or its softplus if asked;
 * w = Δ, or with hold (e^{ΔA} − 1)/A, zero-order hold.
 *   y [B, L, D] · new_state [B, D, N] · states [B, K+1, N, D′] where they are to be kept for the
 *   backward pass (padding is not written) · workspace as selective_scan_workspace says
 *   x, delta, gate [B, L, D] · A [D, N] · B, C [B, L, N] · D, bias [D] · state [B, D, N] · lengths [B]
 * K = ⌈L/64⌉, D′ = D rounded up to 32s. Elements of x, delta, B, C and gate lie `stride` numbers
 * apart, through all rows. Elements at t ≥ length are not read; y is 0 there. One element without
 * lengths, with nothing kept, needs no workspace. */
THREEFOLD_API int THREEFOLD_NAME(selective_scan_forward)(
    real *y, real *new_state, real *optional states, real *optional workspace,
    const real *x, const real *delta, const real *A, const real *B, const real *C,
    const real *optional D, const real *optional gate, const real *optional delta_bias,
    const real *optional state, const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t channels, int64_t size,
    int64_t x_stride, int64_t delta_stride, int64_t B_stride, int64_t C_stride, int64_t gate_stride,
    int64_t softplus, int64_t hold, int64_t keep, int64_t threads);

/* Gradients of the above, with the states between two kept ones computed again.
 *   grad_x, grad_delta, grad_gate (null without a gate) [B, L, D] · grad_A [D, N] · grad_B, grad_C
 *   [B, L, N] · grad_D, grad_bias [D] · grad_state [B, D, N] · grad_y [B, L, D] · grad_new_state [B, D, N]
 *   workspace as selective_scan_workspace says */
THREEFOLD_API int THREEFOLD_NAME(selective_scan_backward)(
    real *grad_x, real *grad_delta, real *grad_A, real *grad_B, real *grad_C, real *grad_D,
    real *optional grad_gate, real *grad_bias, real *grad_state, real *workspace,
    const real *optional grad_y, const real *optional grad_new_state, const real *states,
    const real *x, const real *delta, const real *A, const real *B, const real *C,
    const real *optional D, const real *optional gate, const real *optional delta_bias,
    const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t channels, int64_t size,
    int64_t x_stride, int64_t delta_stride, int64_t B_stride, int64_t C_stride, int64_t gate_stride,
    int64_t softplus, int64_t hold, int64_t threads);

/* `numbers` of type real that the workspace of a pass must hold. */
THREEFOLD_API int THREEFOLD_NAME(selective_scan_workspace)(
    int64_t *numbers,
    int64_t batch, int64_t length, int64_t channels, int64_t size, int64_t backward,
    int64_t threads);

/* S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t−1} + β_t k_t⊗v_t with strength β, or
 * S_t = (Diag(α_t) + a_t b_tᵀ) S_{t−1} + k_t⊗v_t with write a and read b;
 * o_t = S_tᵀ q_t, α = exp(log_decay).
 *   out [B, L, H, V] · new_state [B, H, K, V] · for the backward pass: moved [B, L, H, V], what k or b
 *   read, and checkpoints [B, H, ⌈L/64⌉ − 1, K, V], the memory before each 64 elements but the first
 *   workspace as delta_recurrence_workspace says
 *   query, key [B, L, G, K], head h reads group h / (H/G) · value [B, L, H, V]
 *   log_decay [B, L, H, decays], decays = K or 1, 0 without it · strength [B, L, H]
 *   write, read [B, L, H, K] · state [B, H, K, V] · lengths [B]
 *   strides [7, 3]: of the axes B, L, H of query, key, value, log_decay, strength, write, read
 * Each head is cut into `parts` of its value columns, at most ⌈V/16⌉, for threads to share.
 * Elements at t ≥ length are not read; out is 0 there. */
THREEFOLD_API int THREEFOLD_NAME(delta_recurrence_forward)(
    real *out, real *new_state, real *optional moved, real *optional checkpoints, real *workspace,
    const real *query, const real *key, const real *value, const real *optional log_decay,
    const real *optional strength, const real *optional write, const real *optional read,
    const real *optional state, const int64_t *optional lengths, const int64_t *strides,
    int64_t batch, int64_t length, int64_t heads, int64_t groups, int64_t keys, int64_t values,
    int64_t decays, int64_t parts, int64_t threads);

/* Gradients of the above, contiguous. Those of query, key, log_decay, strength, write and read are
 * for each part and head by itself, to be added up: [parts, B, L, H, …].
 *   grad_out [B, L, H, V] · grad_new_state [B, H, K, V] · strides [8, 3], grad_out's last */
THREEFOLD_API int THREEFOLD_NAME(delta_recurrence_backward)(
    real *grad_query, real *grad_key, real *grad_value, real *optional grad_log_decay,
    real *optional grad_strength, real *optional grad_write, real *optional grad_read,
    real *grad_state, real *workspace,
    const real *grad_out, const real *grad_new_state, const real *moved, const real *checkpoints,
    const real *query, const real *key, const real *value, const real *optional log_decay,
    const real *optional strength, const real *optional write, const real *optional read,
    const real *optional state, const int64_t *optional lengths, const int64_t *strides,
    int64_t batch, int64_t length, int64_t heads, int64_t groups, int64_t keys, int64_t values,
    int64_t decays, int64_t parts, int64_t threads);

/* How many numbers of workspace one of the two above needs. */
THREEFOLD_API int THREEFOLD_NAME(delta_recurrence_workspace)(
    int64_t *numbers,
    int64_t batch, int64_t length, int64_t heads, int64_t groups, int64_t keys, int64_t values,
    int64_t decays, int64_t parts, int64_t backward, int64_t threads);

/* The number of parts into which the value columns of `memories` = B·H memories are best cut. */
THREEFOLD_API int THREEFOLD_NAME(delta_recurrence_parts)(
    int64_t *parts, int64_t memories, int64_t values, int64_t threads);

/* y = f(a, b, c) for each element, with numbers that some f take: program_operations.cpp has them in order.
 *   layout [5, 4]: sizes, then strides of y, a, b and c, 0 along what is repeated */
THREEFOLD_API int THREEFOLD_NAME(pointwise)(
    real *y, const real *optional a, const real *optional b, const real *optional c,
    const int64_t *layout, int64_t function, int64_t threads, double scale, double offset);

/* y = scale Σ a along the last axis, or its largest.
 *   layout [3, 4]: sizes, strides of y, the last unused, strides of a */
THREEFOLD_API int THREEFOLD_NAME(reduce)(
    real *y, const real *a, const int64_t *layout, int64_t largest, int64_t threads, double scale);

/* y_nij = Σ_k a_nik b_nkj.  layout: sizes N, I, J, K, then strides of y, a and b, three each */
THREEFOLD_API int THREEFOLD_NAME(product)(
    real *y, const real *a, const real *b, const int64_t *layout, int64_t threads);

/* y = a, which is of the other precision.  layout [3, 4]: sizes, strides of y, strides of a */
THREEFOLD_API int THREEFOLD_NAME(convert)(
    real *y, const void *a, const int64_t *layout, int64_t threads);

/* y_r = table_{index_r}, rows of a table; an index outside 0 … entries − 1 is refused.
 *   y [R, W] · table [entries, W] · index [R], whole numbers */
THREEFOLD_API int THREEFOLD_NAME(gather)(
    real *y, const real *table, const double *index,
    int64_t rows, int64_t width, int64_t entries, int64_t threads);

/* y = a, whole numbers, as floating-point or (back) as integers.  y, a [count] */
THREEFOLD_API int THREEFOLD_NAME(from_integers)(
    real *y, const int64_t *a, int64_t count, int64_t threads);
THREEFOLD_API int THREEFOLD_NAME(to_integers)(
    int64_t *y, const real *a, int64_t count, int64_t threads);

/* One element of attention over a history with spare room: key and value are written at starts_b, and
 * the query reads the last min(position_b, window − 1) elements before them too.
 *   out [B, H, V] · keys [B, G, C, K] · values [B, G, C, V] · query [B, H, K] · key [B, G, K] ·
 *   value [B, G, V] · bias [1 or B, H, D], added to scores by distance, the last for all further ones ·
 *   slopes [H]: the score falls by this much for each step of distance · starts [B] · position [B]
 * room: C of keys and values; bias_row: from one row's bias to the next; C is given at run time */
THREEFOLD_API int THREEFOLD_NAME(history_step)(
    real *out, real *keys, real *values,
    const real *query, const real *key, const real *value, const real *optional bias,
    const real *optional slopes, const int64_t *key_starts, const int64_t *value_starts,
    const double *position,
    int64_t batch, int64_t heads, int64_t groups, int64_t key_size, int64_t value_size,
    int64_t window, int64_t bias_row, int64_t bias_size, int64_t key_room, int64_t value_room,
    int64_t threads, double scale);

/* The parts of a nonlinear cell after each element, h first, from x and U h₋: cell_kinds.h has them.
 *   out [B, L, H], every h · new_state, state [B, P, H], all parts · kept [B, L, K, H] for the backward
 *   pass · workspace as cell_recurrence_workspace says · inputs [B, L, G, H] · recurrent [N, G·S, S],
 *   N blocks of S = H/N units on the diagonal · extra [E, H] · mask [B, H], what of h the products
 *   see · lengths [B]
 * kind: 0 … 3 RNN with tanh, relu, sigmoid, identity · 4 LSTM · 5 with peepholes · 6 with coupled gates
 * 7 GRU · 8 its z writing · 9, 10 the same with the reset after the product · 11 sLSTM
 * 12, 13 RNN and gated units beside a linear memory.
 * Elements at t ≥ length are not read; out and kept are 0 there. */
THREEFOLD_API int THREEFOLD_NAME(cell_recurrence_forward)(
    real *out, real *new_state, real *optional kept, real *workspace,
    const real *inputs, const real *recurrent, const real *state, const real *optional extra,
    const real *optional mask, const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t hidden, int64_t blocks, int64_t kind, int64_t threads);

/* Gradients of the above for inputs and state; those of recurrent and extra are products of these. */
THREEFOLD_API int THREEFOLD_NAME(cell_recurrence_backward)(
    real *grad_inputs, real *grad_state, real *workspace,
    const real *optional grad_out, const real *optional grad_new_state,
    const real *out, const real *optional kept,
    const real *recurrent, const real *state, const real *optional extra,
    const real *optional mask, const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t hidden, int64_t blocks, int64_t kind, int64_t threads);

/* How many numbers of workspace one of the two above needs. */
THREEFOLD_API int THREEFOLD_NAME(cell_recurrence_workspace)(
    int64_t *numbers,
    int64_t batch, int64_t length, int64_t hidden, int64_t blocks, int64_t kind, int64_t backward,
    int64_t threads);

/* Gated units h beside M memories c of N Legendre coefficients each, of all that the units said:
 * h = h₋ + σ(g)⊙(tanh(a) − h₋), (a, g) = x + R [h; c]₋, c = LegS_t(c₋, w h) at each row's own t.
 *   out [B, L, Z], [h; c] after each element, Z = H + M·N · new_state, state [B, Z] · kept [B, L, 2, H],
 *   tanh(a) and σ(g) · workspace [as legs_recurrence_workspace says] · inputs [B, L, 2, H]
 *   matrix [2·H, Z], R · say [M, H], w · position [B], elements of each row before · lengths [B]
 * Elements at t ≥ length are not read; out and kept are 0 there. */
THREEFOLD_API int THREEFOLD_NAME(legs_recurrence_forward)(
    real *out, real *new_state, real *optional kept, real *workspace,
    const real *inputs, const real *matrix, const real *say, const real *state,
    const int64_t *position, const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t hidden, int64_t memories, int64_t order,
    int64_t threads);

/* Gradients of the above for inputs, state and what was said, [B, L, M]; those of matrix and say are
 * products of these. */
THREEFOLD_API int THREEFOLD_NAME(legs_recurrence_backward)(
    real *grad_inputs, real *grad_said, real *grad_state, real *workspace,
    const real *optional grad_out, const real *optional grad_new_state,
    const real *out, const real *kept, const real *matrix, const real *say, const real *state,
    const int64_t *position, const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t hidden, int64_t memories, int64_t order,
    int64_t threads);

/* How many numbers of workspace either of the two above needs. */
THREEFOLD_API int THREEFOLD_NAME(legs_recurrence_workspace)(
    int64_t *numbers,
    int64_t batch, int64_t hidden, int64_t memories, int64_t order, int64_t threads);

/* h_t = a_t ⊙ h_{t−1} + b_t, real, or complex with planes of real and imaginary parts, C = 1 or 2.
 *   out, write [B, L, C, D] · new_state, state [B, C, D] · decay as write, or [C, D] if `fixed`
 *   lengths [B]. Elements at t ≥ length are not read; out is 0 there. */
THREEFOLD_API int THREEFOLD_NAME(diagonal_recurrence_forward)(
    real *out, real *new_state,
    const real *decay, const real *write, const real *state, const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t planes, int64_t channels, int64_t fixed,
    int64_t threads);

/* Gradients of the above; with a fixed decay, grad_decay [B, C, D] is to be added up over rows. */
THREEFOLD_API int THREEFOLD_NAME(diagonal_recurrence_backward)(
    real *grad_decay, real *grad_write, real *grad_state,
    const real *optional grad_out, const real *optional grad_new_state,
    const real *out, const real *decay, const real *state, const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t planes, int64_t channels, int64_t fixed,
    int64_t threads);

/* h_t = (1−leak) h_{t−1} + leak φ(drive_t + W h_{t−1}), W fixed and sparse: row r holds values and columns
 * starts[r] … starts[r+1] − 1.
 *   out, drive [B, L, H] · new_state, state [B, H] · kept [B, L, H], every φ(·), for the backward pass
 *   values, columns [E] · starts [H+1] · lengths [B]
 * activation: 0 tanh · 1 relu · 2 sigmoid · 3 identity. Elements at t ≥ length are not read; out is 0 there. */
THREEFOLD_API int THREEFOLD_NAME(reservoir_forward)(
    real *out, real *new_state, real *optional kept,
    const real *drive, const real *values, const int32_t *columns, const int64_t *starts,
    const real *state, const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t units, int64_t activation, int64_t threads, double leak);

/* Gradients of the above for drive and state; values, columns and starts are those of Wᵀ. */
THREEFOLD_API int THREEFOLD_NAME(reservoir_backward)(
    real *grad_drive, real *grad_state,
    const real *optional grad_out, const real *optional grad_new_state,
    const real *kept, const real *values, const int32_t *columns, const int64_t *starts,
    const int64_t *optional lengths,
    int64_t batch, int64_t length, int64_t units, int64_t activation, int64_t threads, double leak);

/* S_t = Diag(α_t) S_{t−1} Diag(α'_t) + k_t⊗v_t, o_t = S_tᵀ q_t, α = exp(log_decay); with a bonus
 * o_t = (S_{t−1} + (bonus⊙k_t)⊗v_t)ᵀ q_t.
 *   out [B, L, H, V] · new_state [B, H, K, V] · checkpoints [B, H, ⌈L/64⌉, K, V], the memory before
 *   each 64 elements · workspace as decay_recurrence_workspace says
 *   query, key [B, L, G, K], head h reads group h / (H/G) · value [B, L, H, V]
 *   log_decay [B, L, H, decays], decays = K or 1, 0 without it · log_decay_value [B, L, H, V]
 *   bonus [H, K], not with log_decay_value · state [B, H, K, V] · lengths [B]
 *   strides [5, 3]: of the axes B, L, H of query, key, value, log_decay, log_decay_value, whose last
 *   stride is 1
 * Elements at t ≥ length are not read; out is 0 there. With `check` a positive log-decay is refused,
 * after the outputs were written. */
THREEFOLD_API int THREEFOLD_NAME(decay_recurrence_forward)(
    real *out, real *new_state, real *optional checkpoints, real *workspace,
    const real *query, const real *key, const real *value, const real *optional log_decay,
    const real *optional log_decay_value, const real *optional bonus, const real *optional state,
    const int64_t *optional lengths, const int64_t *strides,
    int64_t batch, int64_t length, int64_t heads, int64_t groups, int64_t keys, int64_t values,
    int64_t decays, int64_t check, int64_t threads);

/* Gradients of the above, each with the shape of its input, contiguous.
 *   grad_out [B, L, H, V] · grad_new_state [B, H, K, V] · strides [6, 3], grad_out's last */
THREEFOLD_API int THREEFOLD_NAME(decay_recurrence_backward)(
    real *grad_query, real *grad_key, real *grad_value, real *optional grad_log_decay,
    real *optional grad_log_decay_value, real *optional grad_bonus, real *optional grad_state,
    real *workspace,
    const real *grad_out, const real *grad_new_state, const real *checkpoints,
    const real *query, const real *key, const real *value, const real *optional log_decay,
    const real *optional log_decay_value, const real *optional bonus, const real *optional state,
    const int64_t *optional lengths, const int64_t *strides,
    int64_t batch, int64_t length, int64_t heads, int64_t groups, int64_t keys, int64_t values,
    int64_t decays, int64_t threads);

/* How many numbers of workspace one of the two above needs. */
THREEFOLD_API int THREEFOLD_NAME(decay_recurrence_workspace)(
    int64_t *elements,
    int64_t batch, int64_t length, int64_t heads, int64_t groups, int64_t keys, int64_t values,
    int64_t decays, int64_t on_value, int64_t with_bonus, int64_t backward, int64_t threads);

/* Distances by dynamic time warping between queries and references, squared differences summed along the
 * best path within a band around the diagonal.
 *   distances [N, M] · x [N, Lx, D], queries · y [M, Ly, D], references · x_lengths [N] · y_lengths [M]
 * window: the half-width of the band, a share of the shorter series. */
THREEFOLD_API int THREEFOLD_NAME(time_warping)(
    real *distances, real *workspace,
    const real *x, const real *y, const int64_t *optional x_lengths,
    const int64_t *optional y_lengths,
    int64_t queries, int64_t references, int64_t x_length, int64_t y_length, int64_t channels,
    int64_t threads, double window);

/* How many numbers of workspace the above needs; columns = min(Lx, Ly). */
THREEFOLD_API int THREEFOLD_NAME(time_warping_workspace)(
    int64_t *elements, int64_t y_length, int64_t columns, int64_t channels, int64_t threads);

/* MiniRocket's features: how often each kernel's response exceeds each of its biases.
 *   features [B, F] · series [B, D, L] · biases [F] · lengths [B] · dilations [J]
 *   counts [J]: biases of a kernel at a dilation · channel_counts [J, 84] · channels: those of each
 *   kernel at each dilation, one after another */
THREEFOLD_API int THREEFOLD_NAME(random_convolutions)(
    real *features, real *workspace,
    const real *series, const real *biases, const int64_t *optional lengths,
    const int64_t *dilations, const int64_t *counts, const int64_t *channel_counts,
    const int64_t *channels,
    int64_t batch, int64_t depth, int64_t length, int64_t dilations_count, int64_t features_count,
    int64_t threads);

/* How many numbers of workspace the above needs; widest: the largest dilation. */
THREEFOLD_API int THREEFOLD_NAME(random_convolutions_workspace)(
    int64_t *elements, int64_t depth, int64_t length, int64_t widest, int64_t threads);

/* A pass of stochastic gradient descent of word vectors by negative sampling, in place.
 *   inputs, outputs [V, W], W whole vectors · words [N] · sentences [S + 1]: where each begins, and N
 *   thresholds, aliases [V]: a table of aliases of the noise, thresholds in units of 2^−32
 * cbow: 0 skip-gram, 1 the mean of the window; key: of the draws; rates: at the first word, at the last. */
THREEFOLD_API int THREEFOLD_NAME(word_vectors)(
    real *inputs, real *outputs, real *workspace,
    const int64_t *words, const int64_t *sentences, const int64_t *thresholds,
    const int64_t *aliases,
    int64_t count, int64_t vocabulary, int64_t width, int64_t window, int64_t negatives,
    int64_t cbow, int64_t key, int64_t threads, double first_rate, double last_rate);

/* How many numbers of workspace the above needs. */
THREEFOLD_API int THREEFOLD_NAME(word_vectors_workspace)(
    int64_t *elements, int64_t width, int64_t negatives, int64_t threads);

/* Leaky integrate-and-fire neurons: v_t = leak v_{t−1} + gain (currents + background), a spike and the
 * reset where v_t ≥ threshold, then held at the reset for the neuron's period. The state is updated in place.
 *   traces, spikes, drive [B, L, N] · state: potential, refractory, trace, since [B, N] · current [B, 2, N],
 *   excitatory and inhibitory · pending [B, slots, 2, N], the next step first · use, resource [B, E]
 *   weights, targets, delays [E], of the sending neuron n: starts[n] … starts[n+1] − 1 · starts [N+1]
 *   utilisation, recovery, facilitation [E]: U, and what is left of D and F after a step
 *   inhibitory, periods [N]
 * delays: 1 … slots steps. synaptic: 1 if the drive is added to the excitatory current. dynamic: 1 if
 * efficacies follow the spikes; else use, resource and the last three of [E] are not read. */
THREEFOLD_API int THREEFOLD_NAME(spiking_reservoir)(
    real *traces, real *spikes, real *potential, real *refractory, real *current, real *pending,
    real *trace, real *since, real *use, real *resource,
    const real *drive, const real *weights, const int32_t *targets, const int32_t *delays,
    const int64_t *starts, const real *utilisation, const real *recovery, const real *facilitation,
    const real *inhibitory, const real *periods,
    int64_t batch, int64_t length, int64_t units, int64_t count, int64_t slots, int64_t synaptic,
    int64_t dynamic, int64_t threads,
    double leak, double gain, double background, double threshold, double reset,
    double excitatory_decay, double inhibitory_decay, double trace_decay);

/* For the tests of simd.h: y = f(x), f = 0 exponential, 1 exponential_normal, 2 sigmoid, 3 silu,
 * 4 silu_slope, 5 softplus, 6 power, 7 power − 1, 8 hyperbolic_tangent. */
THREEFOLD_API int THREEFOLD_NAME(test_function)(
    real *y, const real *x, int64_t count, int64_t function, int64_t threads);

#undef optional
