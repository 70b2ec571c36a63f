"""The operations of the C++ library: what each reads and returns, and the functions behind them.

An operation is declared once. Its schema for torch, the check of its inputs, the shapes of its
results, its derivative's arguments (`registration.derive`) and the C function's signature follow
from here; a test compares the names with native/operations.h. `PROTOTYPES` lists the C functions of
these operations, and all others: those of operations with interfaces of their own, helpers of
kernels, and what only programs call.
"""

from __future__ import annotations

from threefold.kernels.declaration import Declaration, Prototype

TOKEN_SHIFT = Declaration(
    "token_shift(x[batch,length,channels] share[shares,channels] state?[batch,channels]"
    " lengths?[batch]int64) -> y[shares,batch,length,channels] new_state[batch,channels]",
    sizes="shares batch length channels",
)
TOKEN_SHIFT_BACKWARD = Declaration(
    "token_shift_backward(grad_y[shares,batch,length,channels] grad_new_state[batch,channels]"
    " x[batch,length,channels] share[shares,channels] state?[batch,channels]"
    " lengths?[batch]int64) -> grad_x[=x] grad_share[=share] grad_state[=grad_new_state]",
    sizes="shares batch length channels",
    workspace="shares batch channels",
)

_SHORT_CONVOLUTION = (
    "x[batch,length,channels] weight[channels,taps] bias?[channels] state?[batch,taps-1,channels]"
    " lengths?[batch]int64 silu:bool"
)
SHORT_CONVOLUTION = Declaration(
    f"short_convolution({_SHORT_CONVOLUTION})"
    " -> y[batch,length,channels] new_state[batch,taps-1,channels]",
    sizes="batch length channels taps stride silu",
    workspace="batch channels taps backward",
)
SHORT_CONVOLUTION_BACKWARD = Declaration(
    "short_convolution_backward(grad_y[batch,length,channels]"
    f" grad_new_state[*] {_SHORT_CONVOLUTION})"
    " -> grad_x[batch,length,channels] grad_weight[=weight] grad_bias[channels]"
    " grad_state[=grad_new_state]",
    sizes="batch length channels taps stride silu",
    workspace="batch channels taps backward",
)

_RMS_NORM = "x[*,groups,size|*,size] weight?[size|groups,size] gate?[=x] eps:float gate_first:bool"
RMS_NORM = Declaration(f"rms_norm({_RMS_NORM}) -> y[=x]", sizes="rows size groups gate_first")
RMS_NORM_BACKWARD = Declaration(
    f"rms_norm_backward(grad_y[=x] {_RMS_NORM})"
    " -> grad_x[=x] grad_weight[groups,size] grad_gate[=gate]@gate",
    sizes="rows size groups gate_first",
    workspace="rows size groups",
)

FILTER_STEP = Declaration(
    "filter_step(x[batch,channels] state[batch,channels,numbers,2|batch,channels,2*numbers]"
    " factor[channels,2,numbers] write[channels,2*numbers] read[=write] skip?[channels])"
    " -> y[=x] new_state[=state]",
    sizes="batch channels numbers pairs",
    function="filter_step",
)

CAUCHY = Declaration(
    "cauchy(p[channels,4,size] q[=p] square[channels,size] real_part[=square] points[2,count])"
    " -> sums[channels,4,2,count]",
    sizes="channels size count",
)
CAUCHY_BACKWARD = Declaration(
    "cauchy_backward(grad_sums[channels,4,2,count] p[channels,4,size] q[=p]"
    " square[channels,size] real_part[=square] points[2,count])"
    " -> grad_p[=p] grad_q[=q] grad_square[=square] grad_real_part[=square]",
    sizes="channels size count",
)

SWIGLU = Declaration("swiglu(gate[*] x[=gate]) -> y[=gate]", sizes="count")
SWIGLU_BACKWARD = Declaration(
    "swiglu_backward(grad_y[*] gate[*] x[=gate]) -> grad_gate[=gate] grad_x[=gate]", sizes="count"
)

_CELL = (
    "recurrent[blocks,outputs,block] state[batch,parts,hidden] extra?[extras,hidden]"
    " mask?[batch,hidden] lengths?[batch]int64 kind:str"
)
CELL_RECURRENCE = Declaration(
    f"cell_recurrence(inputs[batch,length,gates,hidden] {_CELL} save:bool)"
    " -> out[batch,length,hidden] new_state[=state] kept[batch,length,numbers,hidden]@save",
    sizes="batch length hidden blocks kind",
    workspace="batch length hidden blocks kind backward",
)
CELL_RECURRENCE_BACKWARD = Declaration(
    "cell_recurrence_backward(grad_out?[=out] grad_new_state?[=state]"
    f" out[batch,length,hidden] kept?[batch,length,numbers,hidden] {_CELL})"
    " -> grad_inputs[batch,length,gates,hidden] grad_state[=state]",
    sizes="batch length hidden blocks kind",
    workspace="batch length hidden blocks kind backward",
)

_LEGS = (
    "matrix[2*hidden,columns] say[memories,hidden] state[batch,columns] position[batch]int64"
    " lengths?[batch]int64"
)
LEGS_RECURRENCE = Declaration(
    f"legs_recurrence(inputs[batch,length,2,hidden] {_LEGS} save:bool)"
    " -> out[batch,length,columns] new_state[=state] kept[=inputs]@save",
    sizes="batch length hidden memories order",
    workspace="batch hidden memories order",
)
LEGS_RECURRENCE_BACKWARD = Declaration(
    "legs_recurrence_backward(grad_out?[=out] grad_new_state?[=state]"
    f" out[batch,length,columns] kept[batch,length,2,hidden] {_LEGS})"
    " -> grad_inputs[=kept] grad_said[batch,length,memories] grad_state[=state]",
    sizes="batch length hidden memories order",
    workspace="batch hidden memories order",
)

DIAGONAL_RECURRENCE = Declaration(
    "diagonal_recurrence(decay[*] write[*] state[*] lengths?[batch]int64)"
    " -> out[=write] new_state[=state]",
    sizes="batch length planes channels fixed",
)
DIAGONAL_RECURRENCE_BACKWARD = Declaration(
    "diagonal_recurrence_backward(grad_out?[=out] grad_new_state?[=state] out[*] decay[*] state[*]"
    " lengths?[batch]int64) -> grad_decay[=of_decay] grad_write[=out] grad_state[=state]",
    sizes="batch length planes channels fixed",
)

RESERVOIR = Declaration(
    "reservoir(drive[batch,length,units] values[stored] columns[stored]int32 starts[units+1]int64"
    " back[stored]int64 back_columns[stored]int32 back_starts[units+1]int64 state[batch,units]"
    " lengths?[batch]int64 activation:str leak:float save:bool)"
    " -> out[=drive] new_state[=state] kept[=drive]@save",
    sizes="batch length units activation",
    unread="back back_columns back_starts",
)
RESERVOIR_BACKWARD = Declaration(
    "reservoir_backward(grad_out?[=kept] grad_new_state?[batch,units] kept[batch,length,units]"
    " values[stored] columns[stored]int32 starts[units+1]int64 lengths?[batch]int64"
    " activation:str leak:float) -> grad_drive[=kept] grad_state[batch,units]",
    sizes="batch length units activation",
)

OPERATIONS = tuple(value for value in list(globals().values()) if isinstance(value, Declaration))

# name: outputs and workspace | inputs | integers but for the threads | numbers; ? may be null.
_FUNCTIONS = """
short_convolution_workspace: numbers |  | batch channels taps backward
token_shift_workspace: numbers |  | shares batch channels
long_convolution_forward: y before? workspace | x kernel skip? gate? twiddle | batch source
    channels taps size first gate_step
long_convolution_backward: grad_x grad_kernel grad_skip? workspace | grad_y x kernel skip? gate?
    twiddle | batch source channels taps size first gate_step
online_convolution_spectrum: spectra | kernel twiddle | channels taps tile
online_convolution: y pending inputs workspace | x near skip? spectra? twiddle? positions | batch
    channels pending_row inputs_row rebuild
vandermonde_product: y workspace numbers | factor coefficient lengths? | rows length channels size
    backwards
vandermonde_moments: moments slopes? workspace numbers | x factor lengths? | rows length channels
    size backwards
vandermonde_workspace: reals_and_doubles |  | size moments
linear: y workspace? | x weight bias? | rows inputs outputs
linear_narrow: y workspace | x weight bias? | rows inputs outputs narrow
linear_codes: y workspace? | x codes scale bias? | rows inputs outputs
block_product: y workspace | x weight | rows width block x_stride y_stride turned
block_product_weight: grad_weight workspace | grad_y x | rows width block x_stride y_stride
rotary: y | x cos sin starts | batch length heads size half entries back
rms_norm_workspace: numbers |  | rows size groups
selective_scan_forward: y new_state states? workspace? | x delta A B C D? gate? delta_bias? state?
    lengths? | batch length channels size x_stride delta_stride B_stride C_stride gate_stride
    softplus hold keep
selective_scan_backward: grad_x grad_delta grad_A grad_B grad_C grad_D grad_gate? grad_bias
    grad_state workspace | grad_y? grad_new_state? states x delta A B C D? gate? delta_bias?
    lengths? | batch length channels size x_stride delta_stride B_stride C_stride gate_stride
    softplus hold
selective_scan_workspace: numbers |  | batch length channels size backward
delta_recurrence_forward: out new_state moved? checkpoints? workspace | query key value log_decay?
    strength? write? read? state? lengths? strides | batch length heads groups keys values decays
    parts
delta_recurrence_backward: grad_query grad_key grad_value grad_log_decay? grad_strength?
    grad_write? grad_read? grad_state workspace | grad_out grad_new_state moved checkpoints query
    key value log_decay? strength? write? read? state? lengths? strides | batch length heads
    groups keys values decays parts
delta_recurrence_workspace: numbers |  | batch length heads groups keys values decays parts
    backward
delta_recurrence_parts: parts |  | memories values
pointwise: y | a? b? c? layout | function | scale offset
reduce: y | a layout | largest | scale
product: y | a b layout
convert: y | a layout
gather: y | table index | rows width entries
from_integers: y | a | count
to_integers: y | a | count
history_step: out keys values | query key value bias? slopes? key_starts value_starts position |
    batch heads groups key_size value_size window bias_row bias_size key_room value_room | scale
cell_recurrence_workspace: numbers |  | batch length hidden blocks kind backward
legs_recurrence_workspace: numbers |  | batch hidden memories order
decay_recurrence_forward: out new_state checkpoints? workspace | query key value log_decay?
    log_decay_value? bonus? state? lengths? strides | batch length heads groups keys values decays
    check
decay_recurrence_backward: grad_query grad_key grad_value grad_log_decay? grad_log_decay_value?
    grad_bonus? grad_state? workspace | grad_out grad_new_state checkpoints query key value
    log_decay? log_decay_value? bonus? state? lengths? strides | batch length heads groups keys
    values decays
decay_recurrence_workspace: elements |  | batch length heads groups keys values decays on_value
    with_bonus backward
time_warping: distances workspace | x y x_lengths? y_lengths? | queries references x_length
    y_length channels | window
time_warping_workspace: elements |  | y_length columns channels
random_convolutions: features workspace | series biases lengths? dilations counts channel_counts
    channels | batch depth length dilations_count features_count
random_convolutions_workspace: elements |  | depth length widest
word_vectors: inputs outputs workspace | words sentences thresholds aliases | count vocabulary
    width window negatives cbow key | first_rate last_rate
word_vectors_workspace: elements |  | width negatives
spiking_reservoir: traces spikes potential refractory current pending trace since use resource |
    drive weights targets delays starts utilisation recovery facilitation inhibitory periods |
    batch length units count slots synaptic dynamic | leak gain background threshold reset
    excitatory_decay inhibitory_decay trace_decay
test_function: y | x | count function
"""
PROTOTYPES = {
    prototype.name: prototype
    for prototype in (
        *(declaration.prototype for declaration in OPERATIONS),
        *map(Prototype.parse, _FUNCTIONS.replace("\n    ", " ").strip().splitlines()),
    )
}
