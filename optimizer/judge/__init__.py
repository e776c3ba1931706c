"""From paired measurements to a decision, with the confidence it deserves. Pure: values in, values out."""
