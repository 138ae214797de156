"""The formulas of the docstrings as the site draws them: how they stand there, and in TeX. The build warns of one that
stands in no docstring any more."""

FORMULAS = {
    "softmax(cap(scale q k^T) + bias + mask) v": (
        r"\operatorname{softmax}\left(\operatorname{cap}(\mathrm{scale}\; q k^\top)"
        r" + \mathrm{bias} + \mathrm{mask}\right) v"
    ),
    "1 / sqrt(head_dim)": r"1 / \sqrt{d_\mathrm{head}}",
    "floor(i kv_heads / heads)": r"\lfloor i \; n_\mathrm{kv} / n_\mathrm{heads} \rfloor",
    "concat(head_1, ..., head_h) W_o": r"\operatorname{concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) \, W_o",
    "head_i = attend(x W_q, m W_k, m W_v)": (
        r"\mathrm{head}_i = \operatorname{attend}(x W_q^{(i)}, \, m W_k^{(i)}, \, m W_v^{(i)})"
    ),
    "d scale E[token] + T[type]": r"d \cdot \mathrm{scale} \cdot E_\mathrm{token} + T_\mathrm{type}",
    "1 / (1 - token_dropout)": r"1 / (1 - p_\mathrm{dropout})",
    "scale = sqrt(d_model)": r"\mathrm{scale} = \sqrt{d_\mathrm{model}}",
    "scale = 1 / sqrt(d_model)": r"\mathrm{scale} = 1 / \sqrt{d_\mathrm{model}}",
    "[cls; patches((image - mean) / std) W + b]": (
        r"[\, \mathrm{cls};\ \operatorname{patches}((\mathrm{image} - \mathrm{mean}) / \mathrm{std}) \, W + b \,]"
    ),
    "dropout(scale transform(pool(states))) W + b": (
        r"\operatorname{dropout}(\mathrm{scale} \cdot \operatorname{transform}(\operatorname{pool}(\mathrm{states})))"
        r" \, W + b"
    ),
    "transform(x) = norm(act(x W_t + b_t))": (
        r"\operatorname{transform}(x) = \operatorname{norm}(\operatorname{act}(x W_t + b_t))"
    ),
    "w (x - mean(x)) / sqrt(var(x) + eps) + b": (
        r"w \odot \frac{x - \operatorname{mean}(x)}{\sqrt{\operatorname{var}(x) + \epsilon}} + b"
    ),
    "w x / sqrt(mean(x^2) + eps)": r"w \odot \frac{x}{\sqrt{\operatorname{mean}(x^2) + \epsilon}}",
    "x + dropout(f(norm(x)))": r"x + \operatorname{dropout}(f(\operatorname{norm}(x)))",
    "norm(x + dropout(f(x)))": r"\operatorname{norm}(x + \operatorname{dropout}(f(x)))",
    "x_0 = dropout(norm_0(position.add(x)))": (
        r"x_0 = \operatorname{dropout}(\operatorname{norm}_0(\operatorname{add}_\mathrm{position}(x)))"
    ),
    "P ~ normal(0, d_model^-1/2)": r"P \sim \mathcal{N}(0, \sigma), \ \sigma = d_\mathrm{model}^{-1/2}",
    "PE[p, 2i] = sin(p w_i), PE[p, 2i+1] = cos(p w_i)": (
        r"\mathrm{PE}_{p,\,2i} = \sin(p \, \omega_i), \ \mathrm{PE}_{p,\,2i+1} = \cos(p \, \omega_i)"
    ),
    "w_i = 10000^(-2i / d_model)": r"\omega_i = 10000^{-2i / d_\mathrm{model}}",
    "p theta^(-2i / D)": r"p \, \theta^{-2i / D}",
    "(1 - s) w / factor + s w": r"(1 - s) \, \omega / \mathrm{factor} + s \, \omega",
    "Visible(i, j) = key_mask[j] and (not causal or j <= p) and |p - j| < window": (
        r"\mathrm{visible}_{ij} = \mathrm{real}_j \wedge (\neg\,\mathrm{causal} \vee j \le p)"
        r" \wedge |p - j| < \mathrm{window}"
    ),
    "p = i + num_keys - num_queries": r"p = i + n_\mathrm{keys} - n_\mathrm{queries}",
    "j <= p or j < n": r"j \le p \vee j < n",
    "Visible(j) = key_mask[j] and j <= p and p - j < window": (
        r"\mathrm{visible}_j = \mathrm{real}_j \wedge j \le p \wedge p - j < \mathrm{window}"
    ),
    "j <= i or j < prefix": r"j \le i \vee j < \mathrm{prefix}",
    "head(encoder(embedding(tokens)))": (
        r"\operatorname{head}(\operatorname{encoder}(\operatorname{embedding}(\mathrm{tokens})))"
    ),
    "head(decoder(embedding(tokens)))": (
        r"\operatorname{head}(\operatorname{decoder}(\operatorname{embedding}(\mathrm{tokens})))"
    ),
    "head(decoder(embedding(tokens), memory))": (
        r"\operatorname{head}(\operatorname{decoder}(\operatorname{embedding}(\mathrm{tokens}), \mathrm{memory}))"
    ),
    "memory = encoder(embedding(source))": (
        r"\mathrm{memory} = \operatorname{encoder}(\operatorname{embedding}(\mathrm{source}))"
    ),
    "score(y_1 ... y_n) = sum_t log p(y_t | y_1 ... y_{t-1}) / n ** length_penalty": (
        r"\operatorname{score}(y_1 \ldots y_n) = \frac{\sum_t \log p(y_t \mid y_1 \ldots y_{t-1})}"
        r"{n^{\,\mathrm{length\,penalty}}}"
    ),
    "p ~ softmax(logits / temperature)": r"p \sim \operatorname{softmax}(\mathrm{logits} / \mathrm{temperature})",
    "softmax(head(state))": r"\operatorname{softmax}(\operatorname{head}(\mathrm{state}))",
    "sum_b n_b/n |accuracy_b - confidence_b|": (
        r"\sum_b \frac{n_b}{n} \, |\mathrm{accuracy}_b - \mathrm{confidence}_b|"
    ),
    "(output - score)^2": r"(\mathrm{output} - \mathrm{score})^2",
    "sqrt(warmup / step)": r"\sqrt{\mathrm{warmup} / \mathrm{step}}",
    "A_1 = W_1, A_(t+1) = d_t A_t + (1 - d_t) W_(t+1), d_t = min(decay, (1 + t) / (10 + t))": (
        r"A_1 = W_1, \ A_{t+1} = d_t A_t + (1 - d_t) W_{t+1},"
        r" \ d_t = \min\left(\mathrm{decay}, \frac{1 + t}{10 + t}\right)"
    ),
    "softmax(scale q k^T + bias + mask) I": (
        r"\operatorname{softmax}\left(\mathrm{scale}\; q k^\top + \mathrm{bias} + \mathrm{mask}\right) I"
    ),
    "R_l = A_l R_(l-1), R_0 = I, A_l = (I + mean over the heads of W_l) / 2": (
        r"R_l = A_l R_{l-1}, \ R_0 = I, \ A_l = \tfrac{1}{2} (I + \operatorname{mean}_\mathrm{heads} W_l)"
    ),
    "Visible(r, s) = real(i b - w + s) and 0 < s - r < 2 w": (
        r"\mathrm{visible}_{rs} = \mathrm{real}_{i b - w + s} \wedge 0 < s - r < 2 w"
    ),
    "M[i, j] = (j <= i + num_keys - num_queries)": r"M_{ij} = (j \le i + n_\mathrm{keys} - n_\mathrm{queries})",
    "M[i, j] = |p - j| < window and (not causal or j <= p)": (
        r"M_{ij} = |p - j| < \mathrm{window} \wedge (\neg\,\mathrm{causal} \vee j \le p)"
    ),
    "sum_i -sum_k q_ik log softmax(cap(W x_i + b))_k + z_loss (log Z_i)^2": (
        r"\sum_i -\sum_k q_{ik} \log \operatorname{softmax}(\operatorname{cap}(W x_i + b))_k + z\, (\log Z_i)^2"
    ),
    "-log softmax(head(state))_label": (
        r"-\log \operatorname{softmax}(\operatorname{head}(\mathrm{state}))_\mathrm{label}"
    ),
    "Weight ~ normal(0, scale fan_in^-1/2)": (
        r"W \sim \mathcal{N}(0, \sigma), \ \sigma = \mathrm{scale} \cdot \mathrm{fan\,in}^{-1/2}"
    ),
    "down(dropout(act(up(x))))": (
        r"\operatorname{down}(\operatorname{dropout}(\operatorname{act}(\operatorname{up}(x))))"
    ),
    "down(dropout(act(gate(x)) * up(x)))": (
        r"\operatorname{down}(\operatorname{dropout}(\operatorname{act}(\operatorname{gate}(x)) \odot"
        r" \operatorname{up}(x)))"
    ),
    "min + (1 - min) (1 + cos(pi t)) / 2": r"\min + (1 - \min) \frac{1 + \cos(\pi t)}{2}",
    "1 - (1 - min) t": r"1 - (1 - \min) \, t",
}
