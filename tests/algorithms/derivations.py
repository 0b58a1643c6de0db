"""The algorithms in NumPy, one client and one step after the other.

Written from the papers and sharing no code with the library; float64 throughout.  A model is one
vector; ``gradient(model, weights)`` is the gradient of the weighted sum of the examples' losses;
a round is a list of visits ``(client, batches)`` and ``batches`` ``[K, N]`` holds the weight of
every example in each of the K minibatches.
"""

import jax
import numpy as np
from catalogue import current_timeline
from small_problems import SIZES, logistic_data, logistic_params, recorded_rounds, rotated


def logistic_gradient(inputs, labels):
    """Gradient of the losses log(1 + exp(z)) - y z with z = inputs @ model[:-1] + model[-1]."""
    features = np.column_stack([inputs, np.ones(len(labels))])

    def gradient(model, weights):
        probabilities = 1 / (1 + np.exp(-features @ model))
        return features.T @ (weights * (probabilities - labels))

    return gradient


def logistic_loss(inputs, labels):
    """Weighted sum of the losses log(1 + exp(z)) - y z."""
    features = np.column_stack([inputs, np.ones(len(labels))])

    def loss(model, weights):
        z = features @ model
        return weights @ (np.logaddexp(0, z) - labels * z)

    return loss


def fedsgd(gradient, rounds, model, lr):
    for visits in rounds:
        model = model - lr * np.mean([gradient(model, b[0]) for _, b in visits], axis=0)
    return model


def fedavg(gradient, rounds, model, lr, server=lambda x, delta: x - delta, mu=0.0, sizes=None):
    """``lr(t)``: the client rate of round t.  ``server(x, delta)``: the new model."""
    for t, visits in enumerate(rounds):
        deltas = []
        for _, batches in visits:
            y = model
            for weights in batches:
                y = y - lr(t) * (gradient(y, weights) + mu * (y - model))
            deltas.append(model - y)
        shares = None if sizes is None else [sizes[client] for client, _ in visits]
        model = server(model, np.average(deltas, axis=0, weights=shares))
    return model


def momentum(server_lr, momentum):
    """Hsu et al., 2019."""
    velocity = 0.0

    def server(x, delta):
        nonlocal velocity
        velocity = momentum * velocity + delta
        return x - server_lr * velocity

    return server


def adagrad(server_lr, initial_accumulator, eps):
    """Duchi et al., 2011, ``eps`` inside the root as in optax."""
    squares = initial_accumulator

    def server(x, delta):
        nonlocal squares
        squares = squares + delta**2
        return x - server_lr * delta / np.sqrt(squares + eps)

    return server


def adam(server_lr, b1, b2, eps):
    """Kingma and Ba, 2015, Algorithm 1: with bias correction, ``eps`` outside the root."""
    m, v, t = 0.0, 0.0, 0

    def server(x, delta):
        nonlocal m, v, t
        t += 1
        m = b1 * m + (1 - b1) * delta
        v = b2 * v + (1 - b2) * delta**2
        return x - server_lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)

    return server


def yogi(server_lr, b1, b2, eps):
    """Zaheer et al., 2018, Algorithm 2, with optax's bias correction and start of both moments."""
    m, v, t = 1e-6, 1e-6, 0

    def server(x, delta):
        nonlocal m, v, t
        t += 1
        m = b1 * m + (1 - b1) * delta
        v = v - (1 - b2) * np.sign(v - delta**2) * delta**2
        return x - server_lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)

    return server


def scaffold(gradient, full_weights, rounds, model, lr, server_lr, option):
    """Karimireddy et al., 2020, Algorithm 1.  ``full_weights`` [M, N]: each client's whole data.

    Returns the model, the server's control and all clients' controls [M, d].
    """
    num_clients = len(full_weights)
    control = np.zeros_like(model)
    controls = np.zeros((num_clients, len(model)))
    for visits in rounds:
        model_change = np.zeros_like(model)
        control_change = np.zeros_like(model)
        for client, batches in visits:
            y = model
            for weights in batches:
                y = y - lr * (gradient(y, weights) - controls[client] + control)
            if option == "I":
                new = gradient(model, full_weights[client])
            else:
                new = controls[client] - control + (model - y) / (len(batches) * lr)
            model_change += (y - model) / len(visits)
            control_change += (new - controls[client]) / num_clients
            controls[client] = new
        model = model + server_lr * model_change
        control = control + control_change
    return model, control, controls


# ---- the problem of the catalogue's base programs


def gradient():
    examples = logistic_data().examples
    return logistic_gradient(examples["x"], examples["y"])


def loss():
    examples = logistic_data().examples
    return logistic_loss(examples["x"], examples["y"])


def visits(timeline=None):
    """The visits of each round of the base program as ``(client, [K, N] example weights)``."""
    timeline = current_timeline() if timeline is None else timeline
    return recorded_rounds(SIZES, rotated(2), timeline, jax.random.key(2))


def whole_data_weights():
    """[M, N]: the mean over each client's examples."""
    owners = logistic_data().owners()
    return (owners == np.arange(len(SIZES))[:, None]) / SIZES[:, None]


def flat(params):
    """[..., d]: the model of the derivations."""
    return np.concatenate([params["w"], np.asarray(params["b"])[..., None]], axis=-1)


def start():
    return flat(logistic_params())
