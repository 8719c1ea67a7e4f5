# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime with its CUDA provider: a small network, made by the onnx module."""

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import steps


def network():
    draw = numpy.random.default_rng(1)
    weights, nodes, name = [], [], "x"
    for i in range(6):
        weights.append(numpy_helper.from_array(
            draw.normal(size=(256, 256), scale=1 / 16).astype(numpy.float32), f"w{i}"))
        nodes += [helper.make_node("MatMul", [name, f"w{i}"], [f"m{i}"]),
                  helper.make_node("Tanh", [f"m{i}"], [f"t{i}"])]
        name = f"t{i}"
    tensor = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 256])
    graph = helper.make_graph(nodes, "network", [tensor("x")], [tensor(name)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model.SerializeToString()


def infer(options):
    provider = "CUDAExecutionProvider" if options.device == "cuda" else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        steps.cannot(f"ONNX Runtime {onnxruntime.__version__} was built without {provider}")
    session = onnxruntime.InferenceSession(network(), providers=[provider])
    x = numpy.random.default_rng(2).normal(size=(64, 256)).astype(numpy.float32)

    def step(_):
        for _ in range(20):
            answer, = session.run(None, {"x": x})
        return answer
    steps.tell_hash("output", steps.Batches(options).run(step).tobytes())


if __name__ == "__main__":
    infer(steps.options(["inference"], __doc__.splitlines()[0]))
